"""An exported model in any format: .ticket, .onnx or .safetensors.

Files come from anywhere: sizes are checked first, nothing in them is executed, and a network is built only from a name
that is registered here.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError
from torch import Tensor, nn

from peermask.data.dataset import Task
from peermask.data.normalisation import FromRaw
from peermask.errors import ExportError, ModelError, nearest
from peermask.exports.rebuild import MAX_PARAMETERS, named_module, rebuild
from peermask.exports.ticket import Architecture, Count, Inputs, Text, read_ticket
from peermask.models.layout import find_layout
from peermask.models.outputs import Readout, with_readout
from peermask.run.assemble import with_params

MAX_BYTES = 1 << 29  # of a file: all parameters that are built, in float32, and room for a graph
ONNX_TYPES = {"tensor(uint8)": "uint8", "tensor(float)": "float32", "tensor(int64)": "int64"}


@dataclass(frozen=True)
class Model:
    """An exported model, ready to be asked."""

    name: str  # the file
    shape: tuple[int, ...]  # of one input
    classes: tuple[str, ...]
    labels: tuple[int, ...]  # those the agent learned
    readout: Readout
    inputs: Inputs
    outputs: Callable[[Tensor], Tensor]  # raw inputs [B, ...] -> [B, O]

    @property
    def task(self) -> Task:
        return self.inputs.task

    @property
    def answers(self) -> int:
        """Among how many labels it answers."""
        return len(set(self.labels)) if self.readout == "own" else len(self.classes)


class _About(BaseModel):
    """Classes and labels that .onnx and .safetensors files name."""

    classes: tuple[Text, ...] = Field(min_length=1, max_length=65536)
    labels: tuple[Count, ...] = Field(max_length=65536)
    readout: Readout


def open_model(path: Path | str, module: nn.Module | None = None, weights: Path | str | None = None) -> Model:
    """Read an exported model without trust; its suffix says how.

    Only a ticket needs the `weights` it is a mask over, if those were given; a ticket and a .safetensors file need the
    `module`, if that was one's own.
    """
    path = Path(path)
    match path.suffix:
        case ".ticket":
            return _of_ticket(path, module, weights)
        case ".onnx":
            return _of_onnx(path)
        case ".safetensors":
            return _of_safetensors(path, module)
    known = nearest(path.suffix, (".ticket", ".onnx", ".safetensors"))
    raise ExportError(f"{path} is not an exported model: suffix {path.suffix!r}; {known}")


def _of_ticket(path: Path, module: nn.Module | None, weights: Path | str | None) -> Model:
    ticket = read_ticket(path)
    header = ticket.header
    outputs = torch.no_grad()(rebuild(ticket, str(path), module, weights))
    labels, shape = header.about.labels, header.architecture.shape
    return Model(str(path), shape, header.classes, labels, header.readout, header.inputs, outputs)


def _of_onnx(path: Path) -> Model:
    from peermask.exports.onnx import metadata_of, open_session  # its packages are optional

    data = _bytes(path)
    check_onnx(data, path)
    session = open_session(data, str(path))
    said = metadata_of(session)
    about = _about(said, path)
    takes = session.get_inputs()
    try:
        (given,) = takes
        shape = Architecture(shape=tuple(given.shape[1:]), layers=()).shape
    except ValueError:
        found = [(one.name, one.shape) for one in takes]
        raise ExportError(f"{path} takes {found}, not one batch of inputs [batch, ...]") from None
    inputs = _inputs({**said, "dtype": ONNX_TYPES.get(given.type)}, shape, about, path)

    def outputs(raw: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {given.name: raw.numpy()})[0])

    try:
        tried = outputs(torch.zeros(1, *shape, dtype=getattr(torch, inputs.dtype)))
    except Exception as error:  # onnxruntime's own, without a common base
        raise ExportError(f"{path} does not run: {str(error).splitlines()[0]}") from None
    if tuple(tried.shape) != (1, len(about.classes)):
        raise ExportError(f"{path} does not give one output for each of its {len(about.classes)} classes")
    return Model(str(path), shape, about.classes, about.labels, about.readout, inputs, outputs)


def _of_safetensors(path: Path, module: nn.Module | None) -> Model:
    data = _bytes(path)
    try:
        tensors = safetensors.torch.load(data)
        held = _split(data)[0].get("__metadata__", {})
        check_safetensors(data, path)
    except (SafetensorError, ValueError, RecursionError, AttributeError) as error:
        raise ExportError(f"{path} is not a safetensors file: {str(error).splitlines()[0]}") from None
    said = {key: _json(text) for key, text in held.items()}
    about = _about(said, path)
    try:
        architecture = Architecture.model_validate(said.get("architecture"))
    except ValidationError:
        raise ExportError(
            f"{path} does not say which network its weights are of; export it again with this version"
        ) from None
    inputs = _inputs(said, architecture.shape, about, path)
    tokens = inputs.dtype == "int64"
    empty = (
        named_module(architecture, len(about.classes), str(path), tokens=tokens)
        if module is None
        else copy.deepcopy(module).to("meta")
    )
    try:
        layout = find_layout(empty, architecture.layers)
    except ModelError as error:
        raise ExportError(f"{path}: {error}; a .ticket or .onnx file of it can be read") from None
    if layout.total > MAX_PARAMETERS:
        raise ExportError(f"{path} asks for {layout.total:,} parameters; at most {MAX_PARAMETERS:,} are built")
    for name, wanted in layout.unflatten(torch.empty(layout.total, device="meta")).items():
        there = tuple(tensors[name].shape) if name in tensors else None
        if there != tuple(wanted.shape) or tensors[name].dtype != torch.float32:
            raise ExportError(
                f"{path}: {name} must be float32 {tuple(wanted.shape)} for {architecture.name!r}, "
                f"it is {there and f'{tensors[name].dtype} {there}'}"
            )
    params = torch.cat([tensors[layer.name].flatten() for layer in layout.layers])  # [P]
    network = with_params(empty.to_empty(device="cpu"), layout, params)
    own = with_readout(network, about.readout, about.labels, len(about.classes))
    whole = FromRaw(own, inputs.normalisation, len(architecture.shape), inputs.target_scale).eval()
    return Model(
        str(path), architecture.shape, about.classes, about.labels, about.readout, inputs, torch.no_grad()(whole)
    )


def _about(said: dict[str, Any], path: Path) -> _About:
    try:
        about = _About.model_validate(said)
    except ValidationError as error:
        raise ExportError(
            f"{path} does not say which classes and labels it answers among ({error.errors()[0]['loc'][0]}); "
            "only files that `peermask export` wrote can be read"
        ) from None
    if max(about.labels, default=0) >= len(about.classes):
        raise ExportError(f"{path} has label {max(about.labels)} of {len(about.classes)} classes")
    return about


def _inputs(said: dict[str, Any], shape: tuple[int, ...], about: _About, path: Path) -> Inputs:
    try:
        inputs = Inputs.model_validate({key: said[key] for key in Inputs.model_fields if key in said})
        inputs.check(shape[0], len(about.classes))
    except ValueError as error:  # pydantic's is one
        where = error.errors()[0]["loc"][0] if isinstance(error, ValidationError) else error
        raise ExportError(
            f"{path} does not say what inputs it takes ({where}); export it again with this version"
        ) from None
    return inputs


def _json(text: object) -> Any:
    try:
        return json.loads(str(text))
    except (ValueError, RecursionError):
        return text


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror or error}") from None
    if len(data) > MAX_BYTES:
        raise ExportError(f"{path} has more than {MAX_BYTES:,} bytes, which is too much for an exported model")
    return data


# SHA-256 digests inside .onnx and .safetensors files: a damaged or changed file is refused. They detect accidents, not
# forgery: who changes a file can change its digest. Tickets have their own; files of version 1.0 have none.

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
    """Compare the digest of a file that the safetensors library has read."""
    told = _split(data)[0].get("__metadata__", {}).get(KEY)
    if told is not None and told != digest_safetensors(data):
        raise _mismatch(path)


def _split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and tensors: eight bytes hold the length of the JSON header."""
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def _mismatch(path: Path) -> ExportError:
    return ExportError(f"{path} does not match its SHA-256: it is damaged or was changed; export it again")
