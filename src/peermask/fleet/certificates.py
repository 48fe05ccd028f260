"""Makes the certificates of a fleet: one authority, and one certificate per agent with its number and address.

ca.pem        the authority's certificate; every device has it
ca.key        its key; who has it can act as any agent, so it must not be on the devices
agent-3.pem   agent 3's certificate
agent-3.key   its key; on that device only

For trials, keys are made here and copied. With enrolment.py an agent's key is made on its device and stays there.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from pathlib import Path

from peermask.errors import NodeError
from peermask.files import writing
from peermask.fleet.credentials import (
    ROSTER,
    Credentials,
    common_name,
    host_name,
    load_certificate,
    load_key,
    operator_files,
    relay_files,
    write_key,
    write_private,
)
from peermask.fleet.fleet import Fleet, check_operator_name, split_address

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as error:
    raise NodeError("certificates need another package: pip install 'peermask[node]'") from error

CA_DAYS = 3650
EARLIER = timedelta(hours=1)  # certificates are valid from then on, since clocks of devices differ


def make_certificates(
    fleet: Fleet,
    folder: Path,
    days: int = 365,
    renew: Collection[int] = (),
    agents: Collection[int] | None = None,
) -> list[Path]:
    """Make missing certificates, and those of the agents in `renew` again; others are kept.

    `agents`: those that get one, by default all. An agent whose key is on its device needs a request instead.
    """
    for agent in renew:
        fleet.member(agent)
        if is_enrolled(folder, agent):
            raise NodeError(
                f"the key of agent {agent} is on its device; run `peermask fleet request FLEET {agent}` there, and "
                f"`peermask fleet enrol` here"
            )
    with writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority, key = open_authority(folder)
    made = []
    for member in fleet.agents:
        if agents is not None and member.agent not in (*agents, *renew):
            continue
        files = Credentials.of(folder, member.agent)
        if files.certificate.exists() and member.agent not in renew:
            continue
        own = ec.generate_private_key(ec.SECP256R1())
        public, valid = own.public_key(), timedelta(days=days)
        signed = sign_agent(member.agent, member.host, public, authority, key, valid, member.name)
        _write(files, own, signed)
        made.append(files.certificate)
    if fleet.relay is not None and not relay_files(folder).certificate.exists():
        made.append(_make_relay(split_address(fleet.relay)[0], folder, authority, key, timedelta(days=days)))
    return made


def is_enrolled(folder: Path, agent: int) -> bool:
    """Whether the agent's certificate was made by request, so that its key is not here."""
    files = Credentials.of(folder, agent)
    return files.certificate.exists() and not files.key.exists()


def sign_agent(
    agent: int,
    host: str,
    own: ec.EllipticCurvePublicKey,
    authority: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    valid: timedelta,
    name: str | None = None,
) -> x509.Certificate:
    """An agent's certificate: its number as the common name, its host as the only alternative name."""
    usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return _signed(name or common_name(agent), own, authority, key, valid, usage, host)


def _signed(
    name: str,
    own: ec.EllipticCurvePublicKey,
    authority: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    valid: timedelta,
    usage: list[x509.ObjectIdentifier],
    host: str | None = None,
) -> x509.Certificate:
    made = (
        _builder(name, own, valid)
        .issuer_name(authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    if host is not None:
        made = made.add_extension(x509.SubjectAlternativeName([host_name(host)]), critical=False)
    return made.sign(key, hashes.SHA256())


def _write(files: Credentials, own: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    write_key(files.key, own)
    write_private(files.certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def make_authority() -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = "peermask fleet"
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # only signs certificates
    certificate = (
        _builder(name, key.public_key(), timedelta(days=CA_DAYS))
        .issuer_name(_name(name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def sign(folder: Path, content: bytes) -> str:
    """The authority's signature of a roster, in hex."""
    _, key = open_authority(folder)
    return key.sign(ROSTER + content, ec.ECDSA(hashes.SHA256())).hex()


def open_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The authority's certificate and key; both are made if neither exists."""
    path, key_path = folder / "ca.pem", folder / "ca.key"
    if path.exists() != key_path.exists():
        there, lost = (path, key_path) if path.exists() else (key_path, path)
        raise NodeError(
            f"{there} exists without {lost}; restore that, or delete {folder} and make all certificates again"
        )
    if path.exists():
        return load_certificate(path, None), load_key(key_path)
    certificate, key = make_authority()
    _write(Credentials(path, path, key_path), key, certificate)
    return certificate, key


def existing_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    if not (folder / "ca.key").exists():
        raise NodeError(f"{folder / 'ca.key'} does not exist; run this where the fleet's certificates were made")
    return open_authority(folder)


def _builder(name: str, key: ec.EllipticCurvePublicKey, valid: timedelta) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER + min(valid, timedelta()))  # a negative validity is in the past, for tests
        .not_valid_after(now + valid)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def make_operator(folder: Path, name: str, days: int) -> Credentials:
    """An operator's certificate: it can query agents, and act neither as a server nor as an agent."""
    check_operator_name(name)
    authority, key = existing_authority(folder)
    files, own = operator_files(folder, name), ec.generate_private_key(ec.SECP256R1())
    usage = [ExtendedKeyUsageOID.CLIENT_AUTH]
    _write(files, own, _signed(f"operator-{name}", own.public_key(), authority, key, timedelta(days=days), usage))
    return files


def _make_relay(
    host: str, folder: Path, authority: x509.Certificate, key: ec.EllipticCurvePrivateKey, valid: timedelta
) -> Path:
    """The relay's certificate: it can act as a server for agents, and not as an agent."""
    files, own = relay_files(folder), ec.generate_private_key(ec.SECP256R1())
    usage = [ExtendedKeyUsageOID.SERVER_AUTH]
    _write(files, own, _signed("relay", own.public_key(), authority, key, valid, usage, host))
    return files.certificate
