"""The certificates on a device: which files they are, and whether they are the right ones, valid and private.

ca.pem        the authority's certificate; every device has it
agent-3.pem   agent 3's certificate
agent-3.key   its key; on that device only
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from peermask.errors import NodeError, NotYetError
from peermask.node.fleet import Fleet
from peermask.node.key_files import DAMAGES, load_certificate, load_key

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
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    name = str(names[0].value) if names else "nobody"
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
