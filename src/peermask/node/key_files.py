"""Reading and writing certificates and keys; keys are readable only by their owner."""

from __future__ import annotations

import os
from pathlib import Path

from peermask.errors import NodeError
from peermask.files import writing

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
            f"{whose}{path} does not exist; make it with `peermask fleet certs`, or run with --insecure"
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
