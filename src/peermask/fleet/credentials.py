"""The certificates on a device: which files they are, and whether they are the right ones, valid and private.

ca.pem        the authority's certificate; every device has it. Of two authorities while one replaces the other
agent-3.pem   agent 3's certificate
agent-3.key   its key; on that device only
"""

from __future__ import annotations

import base64
import ipaddress
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from peermask.errors import NodeError, NotYetError
from peermask.files import writing
from peermask.fleet.fleet import Fleet

# Reading and writing certificates and keys; keys are readable only by their owner.

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID
except ImportError as error:
    raise NodeError("certificates need another package: pip install 'peermask[node]'") from error

ROSTER = b"peermask roster 1\n"  # prefix of what is signed, so that no other signature of this key is one of a roster
MINUTES = "%Y-%m-%d %H:%M UTC"
MOST_AUTHORITIES = 2  # the present one, and the one that it replaces
LARGEST_BYTES = 2**16  # of a file of certificates or keys; an honest one has less than 2,000
PEM_BLOCK = re.compile(rb"-----BEGIN [A-Z ]+-----[^-]+-----END [A-Z ]+-----\n?")

# What cryptography raises for files that are damaged, or were never what they should be.
DAMAGES = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


def load_certificate(path: Path, agent: int | None) -> x509.Certificate:
    """A certificate of which every field can be read: one flipped bit may leave a PEM file that still opens."""
    certificate, *others = _load_certificates(path, agent)
    if others:
        raise NodeError(f"{path} holds {1 + len(others)} certificates, allowed: 1; copy it again")
    return certificate


def load_authorities(ca: Path, agent: int | None = None) -> tuple[x509.Certificate, ...]:
    """The authorities that a device trusts, the newest first."""
    return _check_authorities(_load_certificates(ca, agent), str(ca))


def _check_authorities(found: Sequence[x509.Certificate], where: str) -> tuple[x509.Certificate, ...]:
    if len(found) > MOST_AUTHORITIES:
        raise NodeError(f"{where} holds {len(found)} authorities, allowed: {MOST_AUTHORITIES}; retire the earliest one")
    if not all(isinstance(one.public_key(), ec.EllipticCurvePublicKey) for one in found):
        raise NodeError(f"{where} holds an authority without an elliptic-curve key; copy it again")
    return tuple(found)


def _load_certificates(path: Path, agent: int | None) -> list[x509.Certificate]:
    damaged = NodeError(f"certificate {path} is not a PEM certificate, or is damaged; copy it again")
    try:
        data = _read_bounded(path)
        found = x509.load_pem_x509_certificates(data)
        for certificate in found:
            _read_all_fields(certificate)
    except FileNotFoundError:
        whose = f"agent {agent} has no certificate: " if agent is not None else ""
        raise NodeError(
            f"{whose}{path} does not exist; make it with `peermask fleet certs` or `request`, or run with --insecure"
        ) from None
    except OSError as error:
        raise NodeError(f"certificate {path} cannot be read: {error.strerror}") from None
    except DAMAGES:
        raise damaged from None
    if data.count(b"-----") != 4 * len(found):  # a block with a damaged first line is left out without an error
        raise damaged
    return found


def _read_bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(LARGEST_BYTES + 1)
    if len(data) > LARGEST_BYTES:
        raise NodeError(f"{path} has more than {LARGEST_BYTES} bytes: it is not a file of certificates; copy it again")
    return data


def authority_texts(authorities: Sequence[x509.Certificate]) -> tuple[str, ...]:
    """Authorities as a roster has them: DER in base64."""
    return tuple(base64.b64encode(one.public_bytes(serialization.Encoding.DER)).decode() for one in authorities)


def install_authorities(ca: Path, texts: Sequence[str]) -> bool:
    """Write the authorities of a roster, if it has any, to ca.pem; returns whether that changed the file."""
    try:
        found = [x509.load_der_x509_certificate(base64.b64decode(text, validate=True)) for text in texts]
        for certificate in found:
            _read_all_fields(certificate)
    except DAMAGES:
        raise NodeError(
            f"an authority in the roster is damaged, and {ca} stays; make the next roster with `peermask fleet sign`"
        ) from None
    authorities = _check_authorities(found, "the roster")
    if not authorities or authorities == load_authorities(ca):
        return False
    write_authorities(ca, authorities)
    return True


def write_authorities(ca: Path, authorities: Sequence[x509.Certificate]) -> None:
    write_private(ca, b"".join(one.public_bytes(serialization.Encoding.PEM) for one in authorities), 0o644)


def _read_all_fields(certificate: x509.Certificate) -> None:
    certificate.public_key()
    _ = certificate.subject, certificate.not_valid_before_utc, certificate.not_valid_after_utc
    _ = certificate.signature_hash_algorithm, certificate.extensions


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """The key in a file; the newest one of an authority's."""
    return load_keys(path)[0]


def load_keys(path: Path) -> list[ec.EllipticCurvePrivateKey]:
    try:
        if path.stat().st_mode & 0o077:
            raise NodeError(f"key {path} can be read by others; run `chmod 600 {path}`")
        data = _read_bounded(path)
        blocks = PEM_BLOCK.findall(data)
        keys = [serialization.load_pem_private_key(block, password=None) for block in blocks[:MOST_AUTHORITIES]]
    except OSError as error:
        raise NodeError(f"key {path} cannot be read: {error.strerror}") from None
    except DAMAGES:
        keys = []
    if not keys or data.count(b"-----") != 4 * len(keys):
        raise NodeError(f"key {path} is not an unencrypted PEM key, or is damaged; copy it again") from None
    found = [key for key in keys if isinstance(key, ec.EllipticCurvePrivateKey)]
    if len(found) < len(keys):
        raise NodeError(f"key {path} is not an elliptic-curve key; make it again with `peermask fleet certs`")
    return found


def write_keys(path: Path, *keys: ec.EllipticCurvePrivateKey) -> None:
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_private(path, b"".join(key.private_bytes(*form) for key in keys), 0o600)


def write_private(path: Path, data: bytes, mode: int) -> None:
    """Atomically, and never readable by more than `mode` allows, not even for a moment."""
    with writing(path):
        temporary = path.with_name(f".{path.name}.part")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def name_in(subject: x509.Name) -> str:
    """The common name of a certificate or a request."""
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else "nobody"


def common_name(agent: int) -> str:
    return f"agent-{agent}"


@dataclass(frozen=True)
class Credentials:
    """The three files an agent needs."""

    ca: Path
    certificate: Path
    key: Path

    @classmethod
    def of(cls, folder: Path, agent: int) -> Credentials:
        name = common_name(agent)
        return cls(folder / "ca.pem", folder / f"{name}.pem", folder / f"{name}.key")


def operator_files(folder: Path, name: str) -> Credentials:
    return Credentials(folder / "ca.pem", folder / f"operator-{name}.pem", folder / f"operator-{name}.key")


def relay_files(folder: Path) -> Credentials:
    return Credentials(folder / "ca.pem", folder / "relay.pem", folder / "relay.key")


def check_credentials(fleet: Fleet, folder: Path, agent: int, now: datetime | None = None) -> Credentials:
    """The files of an agent, checked: its own, intact, in date and private. Otherwise one line with what to do."""
    files = Credentials.of(folder, agent)
    authorities = load_authorities(files.ca, agent)
    certificate = load_certificate(files.certificate, agent)
    name = name_in(certificate.subject)
    again = f"make it again with `peermask fleet renew FLEET {agent}`"
    if name != fleet.member(agent).name:
        if name.startswith(f"{common_name(agent)}-") or name == common_name(agent):
            raise NodeError(
                f"certificate {files.certificate} was revoked, or this fleet file is older than it ({name}, not "
                f"{fleet.member(agent).name}); copy both again"
            )
        raise NodeError(f"certificate {files.certificate} is of {name}, not of agent {agent}; copy the right one")
    issuer = issuer_of(certificate, authorities)
    if issuer is None:
        raise NodeError(f"certificate {files.certificate} was not issued by {files.ca}; {again}")
    now, start = now or datetime.now(UTC), certificate.not_valid_before_utc
    end = min(certificate.not_valid_after_utc, issuer.not_valid_after_utc)
    if now < start:
        raise NotYetError(
            f"this device's clock says {now:{MINUTES}}, before {start:{MINUTES}}, when certificate {files.certificate} "
            "begins: the clock is behind; set it, or wait until it is set"
        )
    if now > end:
        raise NodeError(
            f"certificate {files.certificate} expired {end:{MINUTES}}, and this device's clock says {now:{MINUTES}}; "
            f"set the clock if it is ahead, otherwise {again}"
        )
    if host_name(fleet.member(agent).host) not in _names_of(certificate):
        raise NodeError(f"certificate {files.certificate} is not for {fleet.member(agent).host}; {again}")
    _check_key(files, certificate, again)
    return files


def _names_of(certificate: x509.Certificate) -> Collection[x509.GeneralName]:
    try:
        return tuple(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return ()


def validity(files: Credentials) -> tuple[datetime, datetime]:
    """From when until when an agent's certificate is valid."""
    certificate = load_certificate(files.certificate, None)
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def find_operator(folder: Path, name: str | None = None) -> Credentials:
    """The operator's files in a folder, checked: in date and of the fleet's authority. Otherwise a one-line error."""
    again = "make one with `peermask fleet operator FLEET NAME`, and copy it and ca.pem here"
    names = [path.stem.removeprefix("operator-") for path in sorted(folder.glob("operator-*.pem"))]
    if name is None and len(names) > 1:
        raise NodeError(f"{folder} holds certificates of operators {', '.join(names)}; choose one with --operator")
    if not names or (name is not None and name not in names):
        raise NodeError(f"{folder} holds no certificate of {f'operator {name}' if name else 'an operator'}; {again}")
    return _checked(operator_files(folder, name or names[0]), again)


def find_relay(folder: Path) -> Credentials:
    return _checked(relay_files(folder), "make it with `peermask fleet certs`, and copy it and ca.pem here")


def _checked(files: Credentials, again: str) -> Credentials:
    certificate = load_certificate(files.certificate, None)
    if issuer_of(certificate, load_authorities(files.ca)) is None:
        raise NodeError(f"{files.certificate} is of another fleet: {files.ca} did not issue it; {again}")
    if datetime.now(UTC) > certificate.not_valid_after_utc:
        raise NodeError(f"{files.certificate} expired {certificate.not_valid_after_utc:{MINUTES}}; {again}")
    _check_key(files, certificate, again)
    return files


def issuer_of(certificate: x509.Certificate, authorities: Sequence[x509.Certificate]) -> x509.Certificate | None:
    """The authority that has signed a certificate."""
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (InvalidSignature, *DAMAGES):
            continue
        return authority
    return None


def _check_key(files: Credentials, certificate: x509.Certificate, again: str) -> None:
    if load_key(files.key).public_key() != certificate.public_key():
        raise NodeError(f"key {files.key} does not belong to {files.certificate}; {again}")


def verifier(ca: Path, agent: int | None = None) -> Callable[[bytes, str], bool]:
    """A function that says whether a roster is signed by an authority that this device trusts.

    While one authority replaces another, both sign: agents that know only one of them can verify it too.
    """
    keys = [authority.public_key() for authority in load_authorities(ca, agent)]

    def verify(content: bytes, signatures: str) -> bool:
        return any(_is_signed(content, one, key) for one in signatures.split(",")[:MOST_AUTHORITIES] for key in keys)

    return verify


def _is_signed(content: bytes, signature: str, key: object) -> bool:
    try:
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(bytes.fromhex(signature), ROSTER + content, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, *DAMAGES):
        return False
    return True


def host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
