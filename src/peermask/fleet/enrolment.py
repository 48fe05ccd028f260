"""Enrolment by request: an agent's key is made on its device and never leaves it; only certificates travel.

    device      makes agent-3.key and the request agent-3.csr, and shows the key's fingerprint
    authority   compares the fingerprint, and signs: agent-3.pem
    device      gets agent-3.pem and ca.pem

A request proves that its sender has the key (it is signed with it), and nothing else: name, address and validity of the
certificate are taken from the authority's fleet file. The fingerprint, compared by people, shows which device sent it.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from peermask.errors import NodeError
from peermask.files import writing
from peermask.fleet.certificates import existing_authority, sign_agent
from peermask.fleet.credentials import Credentials, name_in
from peermask.fleet.fleet import Fleet
from peermask.fleet.pem import DAMAGES, load_certificate, load_key, write_keys, write_private

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID
except ImportError as error:
    raise NodeError("certificates need another package: pip install 'peermask[node]'") from error

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
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, member.name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
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
    authority, authority_key = existing_authority(folder)
    _check_earlier(files, agent, member.name, key, replace=replace)
    signed = sign_agent(member.name, member.host, key, authority, authority_key, timedelta(days=days))
    write_private(files.certificate, signed.public_bytes(serialization.Encoding.PEM), 0o644)
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
