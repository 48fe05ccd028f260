"""Certificates of a fleet: one authority, and one certificate per agent that carries its number and address.

ca.pem        the authority's certificate; every device has it
ca.key        its key; whoever holds it can be any agent, so it stays off the devices
agent-3.pem   agent 3's certificate
agent-3.key   its key; on that device alone
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from peermask.errors import NodeError, NotYetError
from peermask.files import writing
from peermask.node.fleet import Fleet, split_address
from peermask.node.key_files import load_certificate, load_key, write_key, write_private

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise NodeError("certificates need another package: pip install 'peermask[node]'") from error

CA_DAYS = 3650
EARLIER = timedelta(hours=1)  # devices' clocks differ
ROSTER = b"peermask roster 1\n"  # before what is signed, so that nothing else that the key signs is one
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


def make_certificates(fleet: Fleet, folder: Path, days: int = 365, renew: tuple[int, ...] = ()) -> list[Path]:
    """Make what is missing, and the certificates of `renew` again; what exists stays as it is."""
    for agent in renew:
        fleet.member(agent)
    with writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority, key = _authority(folder)
    made = []
    for member in fleet.agents:
        files = Credentials.of(folder, member.agent)
        if files.certificate.exists() and member.agent not in renew:
            continue
        own = ec.generate_private_key(ec.SECP256R1())
        write_key(files.key, own)
        signed = sign_agent(member.agent, member.host, own, authority, key, timedelta(days=days), member.name)
        write_private(files.certificate, signed.public_bytes(serialization.Encoding.PEM), 0o644)
        made.append(files.certificate)
    if fleet.relay is not None and not relay_files(folder).certificate.exists():
        made.append(_make_relay(split_address(fleet.relay)[0], folder, authority, key, timedelta(days=days)))
    return made


def sign_agent(
    agent: int,
    host: str,
    own: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    valid: timedelta,
    name: str | None = None,
) -> x509.Certificate:
    """An agent's certificate: its number as the common name, its host as the only name it may answer to."""
    usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return (
        _builder(name or common_name(agent), own, valid)
        .issuer_name(authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host_name(host)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def make_authority() -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = "peermask fleet"
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates alone
    certificate = (
        _builder(name, key, timedelta(days=CA_DAYS))
        .issuer_name(_name(name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def check_credentials(fleet: Fleet, folder: Path, agent: int) -> Credentials:
    """The files of an agent, found to be its own, whole, in date and private; else one line that says what to do."""
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
                f"{fleet.member(agent).name}); copy both anew"
            )
        raise NodeError(f"certificate {files.certificate} is of {name}, not of agent {agent}; copy the right one")
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError) as error:
        raise NodeError(f"certificate {files.certificate} was not issued by {files.ca}; {again}") from error
    now, start, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < start:
        raise NotYetError(
            f"this device's clock says {now:{MINUTES}}, before {start:{MINUTES}}, when certificate {files.certificate} "
            "begins: the clock is behind; set it, or wait until it is set"
        )
    if now > end:
        raise NodeError(
            f"certificate {files.certificate} ended {end:{MINUTES}}, and this device's clock says {now:{MINUTES}}; "
            f"set the clock if it is ahead, else {again}"
        )
    if (
        _host_name(fleet.member(agent).host)
        not in certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    ):
        raise NodeError(f"certificate {files.certificate} is not for {fleet.member(agent).host}; {again}")
    if load_key(files.key).public_key() != certificate.public_key():
        raise NodeError(f"key {files.key} does not belong to {files.certificate}; {again}")
    return files


def validity(files: Credentials) -> tuple[datetime, datetime]:
    """When an agent's certificate begins and ends."""
    certificate = load_certificate(files.certificate, None)
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def sign(folder: Path, content: bytes) -> str:
    """The authority's signature of a roster, in hex."""
    _, key = _authority(folder)
    return key.sign(ROSTER + content, ec.ECDSA(hashes.SHA256())).hex()


def verifier(ca: Path, agent: int | None = None) -> Callable[[bytes, str], bool]:
    """Tells an agent whether a roster is signed by the authority whose certificate this is."""
    key = load_certificate(ca, agent).public_key()

    def verify(content: bytes, signature: str) -> bool:
        try:
            if not isinstance(key, ec.EllipticCurvePublicKey):
                return False
            key.verify(bytes.fromhex(signature), ROSTER + content, ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, ValueError):
            return False
        return True

    return verify


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    path, key_path = folder / "ca.pem", folder / "ca.key"
    if path.exists() != key_path.exists():
        there, lost = (path, key_path) if path.exists() else (key_path, path)
        raise NodeError(f"{there} exists without {lost}; bring that back, or delete {folder} and issue everything anew")
    if path.exists():
        return load_certificate(path, None), load_key(key_path)
    certificate, key = make_authority()
    write_key(key_path, key)
    write_private(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return certificate, key


def _builder(name: str, key: ec.EllipticCurvePrivateKey, valid: timedelta) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER + min(valid, timedelta()))  # a negative validity lies in the past
        .not_valid_after(now + valid)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def operator_files(folder: Path, name: str) -> Credentials:
    return Credentials(folder / "ca.pem", folder / f"operator-{name}.pem", folder / f"operator-{name}.key")


def make_operator(folder: Path, name: str, days: int) -> Credentials:
    """A certificate to ask agents with, and for nothing else: it is no server's, and no agent's."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", name):
        raise NodeError(f"operator {name!r}: a name has up to 32 lower-case letters, digits and hyphens")
    if not (folder / "ca.key").exists():
        raise NodeError(f"{folder / 'ca.key'} does not exist; run this where the fleet's certificates were made")
    authority, key = _authority(folder)
    files, own = operator_files(folder, name), ec.generate_private_key(ec.SECP256R1())
    signed = (
        _builder(f"operator-{name}", own, timedelta(days=days))
        .issuer_name(authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_key(files.key, own)
    write_private(files.certificate, signed.public_bytes(serialization.Encoding.PEM), 0o644)
    return files


def find_operator(folder: Path, name: str | None = None) -> Credentials:
    """The operator's files in a folder, in date and of the fleet's authority; else one line that says what to do."""
    again = "make one with `peermask fleet operator FLEET NAME`, and copy it and ca.pem here"
    names = [path.stem.removeprefix("operator-") for path in sorted(folder.glob("operator-*.pem"))]
    if name is None and len(names) > 1:
        raise NodeError(f"{folder} holds certificates of operators {', '.join(names)}; choose one with --operator")
    if not names or (name is not None and name not in names):
        raise NodeError(f"{folder} holds no certificate of {f'operator {name}' if name else 'an operator'}; {again}")
    return _whole(operator_files(folder, name or names[0]), again)


def _whole(files: Credentials, again: str) -> Credentials:
    authority, certificate = load_certificate(files.ca, None), load_certificate(files.certificate, None)
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        raise NodeError(f"{files.certificate} is of another fleet: {files.ca} did not issue it; {again}") from None
    if datetime.now(UTC) > certificate.not_valid_after_utc:
        raise NodeError(f"{files.certificate} ended {certificate.not_valid_after_utc:{MINUTES}}; {again}")
    if load_key(files.key).public_key() != certificate.public_key():
        raise NodeError(f"key {files.key} does not belong to {files.certificate}; {again}")
    return files


def relay_files(folder: Path) -> Credentials:
    return Credentials(folder / "ca.pem", folder / "relay.pem", folder / "relay.key")


def find_relay(folder: Path) -> Credentials:
    return _whole(relay_files(folder), "make it with `peermask fleet certs`, and copy it and ca.pem here")


def _make_relay(
    host: str, folder: Path, authority: x509.Certificate, key: ec.EllipticCurvePrivateKey, valid: timedelta
) -> Path:
    """Of a server, and of no agent: it can let agents in, and be none."""
    files, own = relay_files(folder), ec.generate_private_key(ec.SECP256R1())
    signed = (
        _builder("relay", own, valid)
        .issuer_name(authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host_name(host)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_key(files.key, own)
    write_private(files.certificate, signed.public_bytes(serialization.Encoding.PEM), 0o644)
    return files.certificate
