"""The certificates on a device: which files they are, and whether they are the right ones, valid and private.

ca.pem        the authority's certificate; every device has it
agent-3.pem   agent 3's certificate
agent-3.key   its key; on that device only
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from peermask.errors import NodeError, NotYetError
from peermask.files import writing
from peermask.fleet.fleet import Fleet

# Reading and writing certificates and keys; keys are readable only by their owner.

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
except ImportError as error:
    raise NodeError("certificates need another package: pip install 'peermask[node]'") from error

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
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        _read_all_fields(certificate)
        return certificate
    except FileNotFoundError:
        whose = f"agent {agent} has no certificate: " if agent is not None else ""
        raise NodeError(
            f"{whose}{path} does not exist; make it with `peermask fleet certs` or `request`, or run with --insecure"
        ) from None
    except OSError as error:
        raise NodeError(f"certificate {path} cannot be read: {error.strerror}") from None
    except DAMAGES:
        raise NodeError(f"certificate {path} is not a PEM certificate, or is damaged; copy it again") from None


def _read_all_fields(certificate: x509.Certificate) -> None:
    certificate.public_key()
    _ = certificate.subject, certificate.not_valid_before_utc, certificate.not_valid_after_utc
    _ = certificate.signature_hash_algorithm, certificate.extensions


def load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        if path.stat().st_mode & 0o077:
            raise NodeError(f"key {path} can be read by others; run `chmod 600 {path}`")
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise NodeError(f"key {path} cannot be read: {error.strerror}") from None
    except DAMAGES:
        raise NodeError(f"key {path} is not an unencrypted PEM key, or is damaged; copy it again") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise NodeError(f"key {path} is not an elliptic-curve key; make it again with `peermask fleet certs`")
    return key


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(path, private, 0o600)


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


try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID
except ImportError as error:
    raise NodeError("certificates need another package: pip install 'peermask[node]'") from error

ROSTER = b"peermask roster 1\n"  # prefix of what is signed, so that no other signature of this key is one of a roster
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
    authority = load_certificate(files.ca, agent)
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
    if not _is_issued_by(certificate, authority):
        raise NodeError(f"certificate {files.certificate} was not issued by {files.ca}; {again}")
    now, start, end = now or datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
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
    if not _is_issued_by(certificate, load_certificate(files.ca, None)):
        raise NodeError(f"{files.certificate} is of another fleet: {files.ca} did not issue it; {again}")
    if datetime.now(UTC) > certificate.not_valid_after_utc:
        raise NodeError(f"{files.certificate} expired {certificate.not_valid_after_utc:{MINUTES}}; {again}")
    _check_key(files, certificate, again)
    return files


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, *DAMAGES):
        return False
    return True


def _check_key(files: Credentials, certificate: x509.Certificate, again: str) -> None:
    if load_key(files.key).public_key() != certificate.public_key():
        raise NodeError(f"key {files.key} does not belong to {files.certificate}; {again}")


def verifier(ca: Path, agent: int | None = None) -> Callable[[bytes, str], bool]:
    """A function that says whether a roster is signed by the authority with this certificate."""
    key = load_certificate(ca, agent).public_key()

    def verify(content: bytes, signature: str) -> bool:
        try:
            if not isinstance(key, ec.EllipticCurvePublicKey):
                return False
            key.verify(bytes.fromhex(signature), ROSTER + content, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, *DAMAGES):
            return False
        return True

    return verify


def host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
