"""Makes the certificates of a fleet: one per agent, with its number and address, one for a relay, and for operators.

agent-3.pem   agent 3's certificate
agent-3.key   its key; on that device only
agent-3.csr   its request for a certificate

For trials, keys are made here and copied. Enrolment by request makes an agent's key on its device, where it stays:

    device      makes agent-3.key and the request agent-3.csr, and shows the key's fingerprint
    authority   compares the fingerprint, and signs: agent-3.pem
    device      gets agent-3.pem and ca.pem

A request proves that its sender has the key (it is signed with it), and nothing else: name, address and validity of the
certificate are taken from the authority's fleet file. The fingerprint, compared by people, shows which device sent it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from peermask.errors import NodeError
from peermask.files import writing
from peermask.fleet.authority import (
    Authority,
    authority_texts,
    certificate_builder,
    existing_authority,
    open_authority,
    x509_name,
)
from peermask.fleet.credentials import (
    DAMAGES,
    MOST_AUTHORITIES,
    Credentials,
    host_name,
    issuer_of,
    load_authorities,
    load_certificate,
    load_key,
    name_in,
    operator_files,
    relay_files,
    write_keys,
    write_private,
)
from peermask.fleet.fleet import Fleet, FleetMember, check_operator_name, split_address

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID
except ImportError as error:
    raise NodeError("certificates need another package: pip install 'peermask[node]'") from error


AGENT_USAGE = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


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
    authority = open_authority(folder)
    paths, valid = [], timedelta(days=days)
    for member in fleet.agents:
        if agents is not None and member.agent not in (*agents, *renew):
            continue
        files = Credentials.of(folder, member.agent)
        if files.certificate.exists() and member.agent not in renew:
            continue
        enrolled = _enrolled_key(files, member) if is_enrolled(folder, member.agent) else None
        _issue(files, member.name, member.host, authority, valid, public=enrolled)
        paths.append(files.certificate)
    if fleet.relay is not None and (renew_relay or not relay_files(folder).certificate.exists()):
        files, host = relay_files(folder), split_address(fleet.relay)[0]
        _issue(files, "relay", host, authority, valid, [ExtendedKeyUsageOID.SERVER_AUTH])  # it cannot act as an agent
        paths.append(files.certificate)
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
    host: str | None,
    public: ec.EllipticCurvePublicKey,
    authority: Authority,
    valid: timedelta,
    usage: Sequence[x509.ObjectIdentifier] = AGENT_USAGE,
) -> x509.Certificate:
    """A certificate: the common name has the agent's number, its host is the only alternative name."""
    certificate, key = authority
    builder = (
        certificate_builder(name, public, valid, certificate.not_valid_after_utc)
        .issuer_name(certificate.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    if host is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName([host_name(host)]), critical=False)
    return builder.sign(key, hashes.SHA256())


def _issue(
    files: Credentials,
    name: str,
    host: str | None,
    authority: Authority,
    valid: timedelta,
    usage: Sequence[x509.ObjectIdentifier] = AGENT_USAGE,
    public: ec.EllipticCurvePublicKey | None = None,
) -> None:
    """Write a certificate for `public`, or for a new key, which is written too."""
    if public is None:
        private = ec.generate_private_key(ec.SECP256R1())
        write_keys(files.key, private)
        public = private.public_key()
    signed = sign_agent(name, host, public, authority, valid, usage)
    write_private(files.certificate, signed.public_bytes(serialization.Encoding.PEM), 0o644)


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


def make_operator(folder: Path, name: str, days: int) -> Credentials:
    """An operator's certificate: it can query agents, and act neither as a server nor as an agent."""
    check_operator_name(name)
    files, usage = operator_files(folder, name), [ExtendedKeyUsageOID.CLIENT_AUTH]
    _issue(files, f"operator-{name}", None, existing_authority(folder), timedelta(days=days), usage)
    return files


# Enrolment by request.

LARGEST_BYTES = 2**16  # of a request; an honest one has less than 1000
FINGERPRINT_DIGITS = 32  # hexadecimal, of SHA-256 of the public key: 128 bits


def request_path(folder: Path, agent: int) -> Path:
    return Credentials.of(folder, agent).certificate.with_suffix(".csr")


def make_request(fleet: Fleet, folder: Path, agent: int, *, new_key: bool = False) -> tuple[Path, str]:
    """On a device: write a request, and a key unless there is one; returns the file and the key's fingerprint."""
    member, files = fleet.member(agent), Credentials.of(folder, agent)
    with writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if files.key.exists() and not new_key:
        key = load_key(files.key)
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        write_keys(files.key, key)
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509_name(member.name))
    request = builder.sign(key, hashes.SHA256())
    path = request_path(folder, agent)
    write_private(path, request.public_bytes(serialization.Encoding.PEM), 0o644)
    return path, fingerprint_of(key.public_key())


def read_request(path: Path) -> tuple[str, ec.EllipticCurvePublicKey]:
    """The name and the key in a request that is intact and signed with that key."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_BYTES + 1)
        if len(data) > LARGEST_BYTES:
            raise NodeError(
                f"request {path} has more than {LARGEST_BYTES} bytes; it is not one of `peermask fleet request`"
            )
        request = x509.load_pem_x509_csr(data)
        key, genuine, name = request.public_key(), request.is_signature_valid, name_in(request.subject)
    except OSError as error:
        raise NodeError(f"request {path} cannot be read: {error.strerror}") from None
    except DAMAGES:
        raise NodeError(f"request {path} is not a PEM request, or is damaged; copy it again from its device") from None
    if not genuine:
        raise NodeError(f"request {path} is not signed with the key in it; make it again on its device")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise NodeError(f"request {path} has a key that is not of P-256; make it with `peermask fleet request`")
    return name, key


def enrol(
    fleet: Fleet, folder: Path, agent: int, request: Path, fingerprint: str | None, days: int, *, replace: bool = False
) -> Path:
    """Where the authority is: sign a request of an agent; returns its certificate."""
    member, files = fleet.member(agent), Credentials.of(folder, agent)
    name, key = read_request(request)
    if name != member.name:
        raise NodeError(
            f"request {request} is for {name}, not for {member.name}, which agent {agent} is in this fleet file"
        )
    actual = fingerprint_of(key)
    if fingerprint is None:
        raise NodeError(
            f"request {request} has the fingerprint {actual}; if agent {agent}'s device showed the same, add "
            f"--fingerprint {actual}"
        )
    if fingerprint.lower() != actual:
        raise NodeError(
            f"request {request} has the fingerprint {actual}, not {fingerprint}: it was replaced on its way, or is of "
            "another device; it is not signed"
        )
    authority = existing_authority(folder)
    _check_earlier(files, agent, member.name, key, replace=replace)
    _issue(files, member.name, member.host, authority, timedelta(days=days), public=key)
    if files.key.exists() and load_key(files.key).public_key() != key:
        with writing(files.key):
            files.key.unlink()  # of the certificate that was replaced
    return files.certificate


def _check_earlier(files: Credentials, agent: int, name: str, key: ec.EllipticCurvePublicKey, *, replace: bool) -> None:
    """A key that was revoked is not signed again, and a device does not take the place of another unnoticed."""
    if not files.certificate.exists():
        return
    earlier = load_certificate(files.certificate, agent)
    same, revoked = earlier.public_key() == key, name_in(earlier.subject) != name
    if revoked and same:
        raise NodeError(
            f"this key of agent {agent} was revoked; run `peermask fleet request FLEET {agent} --new-key` on its device"
        )
    if not revoked and not same and not replace:
        raise NodeError(
            f"agent {agent} has a certificate for another key, {files.certificate}; add --replace if its device has a "
            "new key, and `peermask fleet revoke` first if the old one may be stolen"
        )


def fingerprint_of(key: ec.EllipticCurvePublicKey) -> str:
    digest = hashes.Hash(hashes.SHA256())
    digest.update(key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))
    return digest.finalize().hex()[:FINGERPRINT_DIGITS]
