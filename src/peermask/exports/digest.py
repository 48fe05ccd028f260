"""SHA-256 digests inside .onnx and .safetensors files: a damaged or changed file is refused when it is read.

They detect accidents, not forgery: who changes a file can change its digest. Tickets have their own checksum.
Files of version 1.0 have no digest and are still read.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from peermask.errors import ExportError

KEY = "sha256"  # in the metadata of .safetensors; in .onnx as peermask.sha256

# A serialised protobuf message may be extended by appending fields. The digest is such a field, the last of the file:
# ModelProto.metadata_props (14) with key (1) and value (2), the value a JSON string of 64 hexadecimal digits.
_ONNX_KEY = f"peermask.{KEY}".encode()
_ONNX_FIELD = bytes([14 << 3 | 2, 85, 1 << 3 | 2, len(_ONNX_KEY)]) + _ONNX_KEY + bytes([2 << 3 | 2, 66])
_ONNX_BYTES = len(_ONNX_FIELD) + 66


def seal_onnx(data: bytes) -> bytes:
    """Append the digest of all bytes to them."""
    return data + _ONNX_FIELD + json.dumps(sha256(data).hexdigest()).encode()


def check_onnx(data: bytes, path: Path) -> None:
    if _ONNX_KEY in data and seal_onnx(data[:-_ONNX_BYTES]) != data:
        raise _mismatch(path)


def digest_safetensors(data: bytes) -> str:
    """The digest of a whole .safetensors file without the entry for the digest itself."""
    header, tensors = _split(data)
    header.get("__metadata__", {}).pop(KEY, None)
    return sha256(json.dumps(header, sort_keys=True).encode() + tensors).hexdigest()


def check_safetensors(data: bytes, path: Path) -> None:
    """Expects a file that the safetensors library has read."""
    told = _split(data)[0].get("__metadata__", {}).get(KEY)
    if told is not None and told != digest_safetensors(data):
        raise _mismatch(path)


def _split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and tensors: eight bytes hold the length of the JSON header."""
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def _mismatch(path: Path) -> ExportError:
    return ExportError(f"{path} does not match its SHA-256: it is damaged or was changed; export it again")
