"""Certificates and keys: PEM files, which are bounded before they are parsed, and those of a device, checked.

ca.pem        the authority's certificate; every device has it. Of two authorities while one replaces the other
agent-3.pem   agent 3's certificate
agent-3.key   its key; on that device only
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from peermask.errors import NodeError, NotYetError
from peermask.files import replacing, writing
from peermask.fleet.fleet import OPERATOR_NAME, Fleet

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID
except ImportError as error:
    raise NodeError("certificates need another package: pip install 'peermask[node]'") from error

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


def load_certificate(path: Path, agent: int | None = None) -> x509.Certificate:
    return load_certificates(path, agent, most=1)[0]


def load_certificates(path: Path, agent: int | None, most: int) -> tuple[x509.Certificate, ...]:
    """Certificates of which every field can be read: one flipped bit may leave a PEM file that still opens."""
    damaged = NodeError(f"certificate {path} is not a PEM certificate, or is damaged; copy it again")
    try:
        data = _read_bounded(path)
        if data.count(b"-----BEGIN") > most:
            count = data.count(b"-----BEGIN")
            raise NodeError(f"{path} holds {count} certificates, allowed: {most}; copy it again")
        certificates = x509.load_pem_x509_certificates(data)
        for certificate in certificates:
            check_fields(certificate)
    except FileNotFoundError:
        whose = f"agent {agent} has no certificate: " if agent is not None else ""
        raise NodeError(
            f"{whose}{path} does not exist; make it with `peermask fleet certs` or `request`, or run with --insecure"
        ) from None
    except OSError as error:
        raise NodeError(f"certificate {path} cannot be read: {error.strerror}") from None
    except DAMAGES:
        raise damaged from None
    if data.count(b"-----") != 4 * len(certificates):  # a block with a damaged first line is left out without an error
        raise damaged
    return tuple(certificates)


def load_authorities(ca: Path, agent: int | None = None) -> tuple[x509.Certificate, ...]:
    """The authorities that a device trusts, the newest first."""
    authorities = load_certificates(ca, agent, MOST_AUTHORITIES)
    if not all(map(is_self_signed, authorities)):  # TLS would refuse it, and the session that is open would be lost
        raise NodeError(f"certificate {ca} is damaged, or not an authority's; copy it again")
    return authorities


def is_self_signed(authority: x509.Certificate) -> bool:
    return issuer_of(authority, [authority]) is not None


def issuer_of(certificate: x509.Certificate, authorities: Sequence[x509.Certificate]) -> x509.Certificate | None:
    """The authority that has signed a certificate."""
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (InvalidSignature, *DAMAGES):
            continue
        return authority
    return None


def _read_bounded(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(LARGEST_BYTES + 1)
    if len(data) > LARGEST_BYTES:
        raise NodeError(f"{path} has more than {LARGEST_BYTES} bytes: it is not a file of certificates; copy it again")
    return data


def check_fields(certificate: x509.Certificate) -> None:
    """Read every field; an error of DAMAGES if one is damaged."""
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
        raise NodeError(f"key {path} is not an unencrypted PEM key, or is damaged; copy it again")
    elliptic = [key for key in keys if isinstance(key, ec.EllipticCurvePrivateKey)]
    if len(elliptic) < len(keys):
        raise NodeError(f"key {path} is not an elliptic-curve key; make it again with `peermask fleet certs`")
    return elliptic


def write_keys(path: Path, *keys: ec.EllipticCurvePrivateKey) -> None:
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_private(path, b"".join(key.private_bytes(*form) for key in keys), 0o600)


def write_private(path: Path, data: bytes, mode: int) -> None:
    """Atomically, and never readable by more than `mode` allows, not even for a moment. Nor by less: agents write
    ca.pem too, and others of the device read it."""
    with writing(path), replacing(path) as temporary:
        temporary.unlink(missing_ok=True)  # a process of the same number may have been interrupted
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
        temporary.chmod(mode)


# The certificates on a device: which files they are, and whether they are the right ones, valid and private.

OPERATOR_PROTOCOL = "peermask-operator/1"  # ALPN
OPERATOR = re.compile(f"operator-{OPERATOR_NAME.pattern}")  # the name in an operator's certificate
MINUTES = "%Y-%m-%d %H:%M UTC"


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


def _check_key(files: Credentials, certificate: x509.Certificate, again: str) -> None:
    if load_key(files.key).public_key() != certificate.public_key():
        raise NodeError(f"key {files.key} does not belong to {files.certificate}; {again}")


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
