"""The authority of a fleet: its key signs certificates and rosters; devices trust its certificate.

ca.pem        its certificate, on every device. Of two while one replaces the other, the newer first
ca.key        its key, or theirs; who has it can act as any agent, so it must not be on the devices
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from peermask.errors import NodeError
from peermask.fleet.credentials import (
    DAMAGES,
    MOST_AUTHORITIES,
    is_self_signed,
    load_authorities,
    load_keys,
    write_keys,
    write_private,
)

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID
except ImportError as error:
    raise NodeError("certificates need another package: pip install 'peermask[node]'") from error

ROSTER = b"peermask roster 1\n"  # prefix of what is signed, so that no other signature of this key is one of a roster
SIGNATURES = re.compile("[0-9a-f]{16,144}(,[0-9a-f]{16,144})?")  # one form alone: agents pass on what they received
CA_DAYS = 3650
Authority = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]
EARLIER = timedelta(hours=1)  # certificates are valid from then on, since clocks of devices differ


def make_authority() -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = "peermask fleet"
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # only signs certificates
    certificate = (
        certificate_builder(name, key.public_key(), timedelta(days=CA_DAYS))
        .issuer_name(x509_name(name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def open_authority(folder: Path) -> Authority:
    """The newest authority's certificate and key; both are made if neither exists."""
    path, key_path = folder / "ca.pem", folder / "ca.key"
    if not path.exists() and not key_path.exists():
        certificate, key = make_authority()
        write_keys(key_path, key)
        write_authorities(path, [certificate])
        return certificate, key
    if not path.exists():
        raise NodeError(f"{key_path} exists without {path}; copy that from any device")
    authorities = _authorities(folder)
    if not authorities or authorities[0][0] != load_authorities(path)[0]:
        raise NodeError(
            f"{path} exists without its key in {key_path}; restore that, or replace the authority: "
            "`peermask fleet certs FLEET --new-authority`"
        )
    return authorities[0]


def existing_authority(folder: Path) -> Authority:
    if not (folder / "ca.key").exists():
        raise NodeError(f"{folder / 'ca.key'} does not exist; run this where the fleet's certificates were made")
    return open_authority(folder)


def _authorities(folder: Path) -> list[Authority]:
    """Certificates with their keys, the newest first; those of which the key is lost, or not used yet, are left out."""
    keys = load_keys(folder / "ca.key") if (folder / "ca.key").exists() else []
    return [
        (certificate, key)
        for certificate in load_authorities(folder / "ca.pem")
        for key in keys
        if key.public_key() == certificate.public_key()
    ]


def replace_authority(folder: Path, named: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Make a new authority beside the present one, whose key may be lost; returns both, for a roster.

    The keys are written first: one without a certificate is not used, should this be interrupted. `named`: by the
    present roster; if that lacks the newest, this was interrupted afterwards, and is finished.
    """
    present = load_authorities(folder / "ca.pem")
    if len(present) == MOST_AUTHORITIES:
        if (texts := authority_texts(present))[:1] != named[:1]:
            return texts
        raise NodeError(
            f"{folder / 'ca.pem'} holds {MOST_AUTHORITIES} authorities already; retire the earlier one first: "
            "`peermask fleet certs FLEET --retire-authority`"
        )
    earlier = [key for _, key in _authorities(folder)]
    certificate, key = make_authority()
    write_keys(folder / "ca.key", key, *earlier)
    write_authorities(folder / "ca.pem", [certificate, *present])
    return authority_texts([certificate, *present])


def retire_authority(folder: Path) -> None:
    """Trust only the newest authority, and delete the key of the earlier one."""
    certificate, key = open_authority(folder)
    write_authorities(folder / "ca.pem", [certificate])
    write_keys(folder / "ca.key", key)


def certificate_builder(
    name: str, key: ec.EllipticCurvePublicKey, valid: timedelta, latest: datetime | None = None
) -> x509.CertificateBuilder:
    """`latest`: when the authority's certificate ends; one of its certificates ends no later."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509_name(name))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER + min(valid, timedelta()))  # a negative validity is in the past, for tests
        .not_valid_after(min(now + valid, latest or now + valid))
    )


def x509_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def authority_texts(authorities: Sequence[x509.Certificate]) -> tuple[str, ...]:
    """Authorities as a roster has them: DER in base64."""
    return tuple(base64.b64encode(one.public_bytes(serialization.Encoding.DER)).decode() for one in authorities)


def install_authorities(ca: Path, texts: Sequence[str]) -> bool:
    """Write the authorities of a roster, if it has any, to ca.pem; returns whether that changed the file.

    Only the first of them, the newest, may be new here: an earlier one that is not trusted here was retired, and an old
    roster does not bring it back.
    """
    try:
        authorities = tuple(x509.load_der_x509_certificate(base64.b64decode(text, validate=True)) for text in texts)
        intact = all(map(is_self_signed, authorities))
    except DAMAGES:
        intact = False
    if not intact:
        raise NodeError(
            f"an authority in the roster is damaged, and {ca} stays; make the next roster with `peermask fleet sign`"
        )
    trusted = load_authorities(ca)
    wanted = authorities[:1] + tuple(one for one in authorities[1:] if one in trusted)
    if wanted in ((), trusted):
        return False
    write_authorities(ca, wanted)
    return True


def write_authorities(ca: Path, authorities: Sequence[x509.Certificate]) -> None:
    write_private(ca, b"".join(one.public_bytes(serialization.Encoding.PEM) for one in authorities), 0o644)


def sign(folder: Path, content: bytes) -> str:
    """The signatures of a roster by all authorities whose keys are here, in hex."""
    open_authority(folder)
    signatures = (key.sign(ROSTER + content, ec.ECDSA(hashes.SHA256())) for _, key in _authorities(folder))
    return ",".join(signature.hex() for signature in signatures)


def verifier(ca: Path, agent: int | None = None) -> Callable[[bytes, str], bool]:
    """A function that says whether a roster is signed by an authority that this device trusts.

    While one authority replaces another, both sign: agents that know only one of them can verify it too.
    """
    keys = [authority.public_key() for authority in load_authorities(ca, agent)]

    def verify(content: bytes, signatures: str) -> bool:
        parts = signatures.split(",") if SIGNATURES.fullmatch(signatures) else ()
        return any(_is_signed(content, signature, key) for signature in parts for key in keys)

    return verify


def _is_signed(content: bytes, signature: str, key: object) -> bool:
    try:
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(bytes.fromhex(signature), ROSTER + content, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, *DAMAGES):
        return False
    return True
