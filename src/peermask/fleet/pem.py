"""Certificates and keys in PEM files: bounded before they are parsed; keys are readable only by their owner."""

from __future__ import annotations

import os
import re
from pathlib import Path

from peermask.errors import NodeError
from peermask.files import replacing, writing

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
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
