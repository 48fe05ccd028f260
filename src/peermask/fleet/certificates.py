"""Makes the certificates of a fleet: one authority, and one certificate per agent with its number and address.

ca.pem        the authority's certificate; every device has it. Of two while one replaces the other, the newer first
ca.key        its key, or theirs; who has it can act as any agent, so it must not be on the devices
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
    authority_texts,
    host_name,
    issuer_of,
    load_authorities,
    name_in,
    operator_files,
    relay_files,
    write_authorities,
)
from peermask.fleet.fleet import Fleet, FleetMember, check_operator_name, split_address
from peermask.fleet.pem import MOST_AUTHORITIES, load_certificate, load_keys, write_keys, write_private

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
    *,
    renew_relay: bool = False,
) -> list[Path]:
    """Make missing certificates, and those of the agents in `renew` again; others stay.

    `agents`: those that get one, by default all. An agent whose key is on its device keeps that key.
    """
    for agent in renew:
        fleet.member(agent)
    with writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority, key = open_authority(folder)
    paths, valid = [], timedelta(days=days)
    for member in fleet.agents:
        if agents is not None and member.agent not in (*agents, *renew):
            continue
        files = Credentials.of(folder, member.agent)
        if files.certificate.exists() and member.agent not in renew:
            continue
        if is_enrolled(folder, member.agent):
            private, public = None, _enrolled_key(files, member)
        else:
            private = ec.generate_private_key(ec.SECP256R1())
            public = private.public_key()
        _write(files, private, sign_agent(member.name, member.host, public, authority, key, valid))
        paths.append(files.certificate)
    if fleet.relay is not None and (renew_relay or not relay_files(folder).certificate.exists()):
        paths.append(_make_relay(split_address(fleet.relay)[0], folder, authority, key, valid))
    return paths


def _enrolled_key(files: Credentials, member: FleetMember) -> ec.EllipticCurvePublicKey:
    """The public key of an agent whose private key is on its device."""
    certificate = load_certificate(files.certificate, member.agent)
    key = certificate.public_key()
    if name_in(certificate.subject) != member.name or not isinstance(key, ec.EllipticCurvePublicKey):
        raise NodeError(
            f"the key of agent {member.agent} was revoked, and is on its device; run `peermask fleet request FLEET "
            f"{member.agent} --new-key` there, and `peermask fleet enrol` here"
        )
    return key


def is_enrolled(folder: Path, agent: int) -> bool:
    """Whether the agent's certificate was made by request, so that its key is not here."""
    files = Credentials.of(folder, agent)
    return files.certificate.exists() and not files.key.exists()


def sign_agent(
    name: str,
    host: str,
    public: ec.EllipticCurvePublicKey,
    authority: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    valid: timedelta,
) -> x509.Certificate:
    """An agent's certificate: the common name has its number, its host as the only alternative name."""
    usage = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return _signed(name, public, authority, key, valid, usage, host)


def _signed(
    name: str,
    public: ec.EllipticCurvePublicKey,
    authority: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    valid: timedelta,
    usage: list[x509.ObjectIdentifier],
    host: str | None = None,
) -> x509.Certificate:
    builder = (
        _builder(name, public, valid, authority.not_valid_after_utc)
        .issuer_name(authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    if host is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName([host_name(host)]), critical=False)
    return builder.sign(key, hashes.SHA256())


def _write(files: Credentials, key: ec.EllipticCurvePrivateKey | None, certificate: x509.Certificate) -> None:
    if key is not None:
        write_keys(files.key, key)
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
    """The signatures of a roster by all authorities whose keys are here, in hex."""
    open_authority(folder)
    signatures = (key.sign(ROSTER + content, ec.ECDSA(hashes.SHA256())) for _, key in _authorities(folder))
    return ",".join(signature.hex() for signature in signatures)


def _authorities(folder: Path) -> list[tuple[x509.Certificate, ec.EllipticCurvePrivateKey]]:
    """Certificates with their keys, the newest first; those of which the key is lost, or not used yet, are left out."""
    keys = load_keys(folder / "ca.key") if (folder / "ca.key").exists() else []
    return [
        (certificate, key)
        for certificate in load_authorities(folder / "ca.pem")
        for key in keys
        if key.public_key() == certificate.public_key()
    ]


def open_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """The newest authority's certificate and key; both are made if neither exists."""
    path, key_path = folder / "ca.pem", folder / "ca.key"
    if not path.exists() and not key_path.exists():
        certificate, key = make_authority()
        _write(Credentials(path, path, key_path), key, certificate)
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


def newest_authority(fleet: Fleet, folder: Path) -> tuple[str, ...]:
    """The authority that stays once the earlier one is retired, for a roster; an error if that is still in use."""
    if len(load_authorities(folder / "ca.pem")) < MOST_AUTHORITIES:
        raise NodeError(
            f"{folder / 'ca.pem'} holds one authority, which cannot be retired; make another one first: "
            "`peermask fleet certs FLEET --new-authority`"
        )
    newest, _ = open_authority(folder)
    agents = [Credentials.of(folder, member.agent).certificate for member in fleet.agents]
    revoked = {operator_files(folder, name).certificate for name in fleet.revoked_operators}
    others = [relay_files(folder).certificate, *sorted(set(folder.glob("operator-*.pem")) - revoked)]
    for path in filter(Path.exists, (*agents, *others)):
        certificate = load_certificate(path)
        if certificate.not_valid_after_utc > datetime.now(UTC) and issuer_of(certificate, [newest]) is None:
            again = "operator FLEET NAME" if path.name.startswith("operator-") else "renew FLEET"
            raise NodeError(
                f"{path} is of the authority that is to be retired; run `peermask fleet {again}`, copy the certificate "
                "to its device, and retire the authority then"
            )
    return authority_texts([newest])


def retire_authority(folder: Path) -> None:
    """Trust only the newest authority, and delete the key of the earlier one."""
    certificate, key = open_authority(folder)
    write_authorities(folder / "ca.pem", [certificate])
    write_keys(folder / "ca.key", key)


def existing_authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    if not (folder / "ca.key").exists():
        raise NodeError(f"{folder / 'ca.key'} does not exist; run this where the fleet's certificates were made")
    return open_authority(folder)


def _builder(
    name: str, key: ec.EllipticCurvePublicKey, valid: timedelta, latest: datetime | None = None
) -> x509.CertificateBuilder:
    """`latest`: when the authority's certificate ends; one of its certificates ends no later."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER + min(valid, timedelta()))  # a negative validity is in the past, for tests
        .not_valid_after(min(now + valid, latest or now + valid))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def make_operator(folder: Path, name: str, days: int) -> Credentials:
    """An operator's certificate: it can query agents, and act neither as a server nor as an agent."""
    check_operator_name(name)
    authority, key = existing_authority(folder)
    files, private = operator_files(folder, name), ec.generate_private_key(ec.SECP256R1())
    usage = [ExtendedKeyUsageOID.CLIENT_AUTH]
    _write(
        files, private, _signed(f"operator-{name}", private.public_key(), authority, key, timedelta(days=days), usage)
    )
    return files


def _make_relay(
    host: str, folder: Path, authority: x509.Certificate, key: ec.EllipticCurvePrivateKey, valid: timedelta
) -> Path:
    """The relay's certificate: it can act as a server for agents, and not as an agent."""
    files, private = relay_files(folder), ec.generate_private_key(ec.SECP256R1())
    usage = [ExtendedKeyUsageOID.SERVER_AUTH]
    _write(files, private, _signed("relay", private.public_key(), authority, key, valid, usage, host))
    return files.certificate
