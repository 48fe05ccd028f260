"""The certificates on a device: which files they are, and whether they are the right ones, valid and private.

ca.pem        the authority's certificate; every device has it. Of two authorities while one replaces the other
agent-3.pem   agent 3's certificate
agent-3.key   its key; on that device only
"""

from __future__ import annotations

import base64
import ipaddress
import re
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from peermask.errors import NodeError, NotYetError
from peermask.fleet.fleet import OPERATOR_NAME, Fleet
from peermask.fleet.pem import DAMAGES, MOST_AUTHORITIES, load_certificate, load_certificates, load_key, write_private

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
OPERATOR_PROTOCOL = "peermask-operator/1"  # ALPN
OPERATOR = re.compile(f"operator-{OPERATOR_NAME.pattern}")  # the name in an operator's certificate
MINUTES = "%Y-%m-%d %H:%M UTC"


def load_authorities(ca: Path, agent: int | None = None) -> tuple[x509.Certificate, ...]:
    """The authorities that a device trusts, the newest first."""
    authorities = load_certificates(ca, agent, MOST_AUTHORITIES)
    if not all(map(is_self_signed, authorities)):  # TLS would refuse it, and the session that is open would be lost
        raise NodeError(f"certificate {ca} is damaged, or not an authority's; copy it again")
    return authorities


def is_self_signed(authority: x509.Certificate) -> bool:
    return issuer_of(authority, [authority]) is not None


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
    certificate = load_certificate(files.certificate)
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
    certificate = load_certificate(files.certificate)
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


def host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def tls_context(side: int, credentials: Credentials, protocol: str = OPERATOR_PROTOCOL) -> ssl.SSLContext:
    """Both ends must have a certificate of the fleet's authority."""
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(credentials.ca)
    context.load_cert_chain(credentials.certificate, credentials.key)
    context.set_alpn_protocols([protocol])
    return context


def name_of(certificate: Mapping[str, object] | None) -> str:
    """The common name, as the ssl module gives it."""
    subject = (certificate or {}).get("subject", ())
    assert isinstance(subject, tuple)
    return next((str(value) for ((key, value),) in subject if key == "commonName"), "nobody")
