"""An agent's model as ONNX, its dead filters removed, compared with PyTorch in onnxruntime before it is written."""

from __future__ import annotations

import json
import logging
import warnings
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from peermask.errors import ExportError
from peermask.exports import Precision
from peermask.exports.slim import NotSlimmable, Slim, count_multiply_adds, count_parameters, slim
from peermask.exports.trial import make_session, run

try:
    import onnx
    import onnxruntime
    import onnxscript  # noqa: F401 (torch's exporter needs it)
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    raise ExportError(f"ONNX needs {error.name}; install it with: pip install 'peermask[export]'") from error

TOLERANCE = 1e-4
TRIALS = 8  # inputs on which PyTorch and onnxruntime are compared
REPEATS = 30


@dataclass(frozen=True)
class Figures:
    size: int  # bytes
    parameters: int
    multiply_adds: int
    latency: float  # seconds for one input in onnxruntime, on one thread, the median


@dataclass(frozen=True)
class OnnxModel:
    data: bytes
    full: Figures
    slim: Figures | None  # of the file; None where it is as the whole model
    removed: dict[str, int]  # filters, by layer
    obstacle: str | None  # why not, in one line
    difference: float  # the largest, between the file in onnxruntime and the agent's model in PyTorch
    left: dict[str, int]  # layers that stay float32, with how many magnitudes their weights have


def make_onnx(
    module: nn.Module, examples: Tensor, metadata: dict[str, Any], precision: Precision = "float32"
) -> OnnxModel:
    """A personal module as ONNX, tried on raw inputs [n, ...] of the kind it takes.

    `full` is always float32 and whole, so that figures can be compared.
    """
    examples = examples[:TRIALS]
    full_data = to_onnx(module, examples, metadata)
    full = measure(full_data, module, examples)
    try:
        cut, obstacle = slim(module, tuple(examples.shape[1:])), None
    except NotSlimmable as error:
        cut, obstacle = Slim(module, {}), str(error)
    made = with_signs(full_data if obstacle else to_onnx(cut.module, examples, metadata), precision)
    small = None if obstacle and precision == "float32" else measure(made.data, cut.module, examples)
    difference = measure_difference(made.data, module, examples)
    return OnnxModel(made.data, full, small, cut.removed, obstacle, difference, made.left)


def to_onnx(module: nn.Module, examples: Tensor, metadata: dict[str, Any]) -> bytes:
    """Write ONNX from `inputs` [batch, ...], raw, of the dataset's type, to `outputs` [batch, O]."""
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # like the log above: warnings about the exporter itself
        try:
            program = torch.onnx.export(
                module.eval(),
                (torch.cat([examples[:1], examples[:1]]),),
                dynamo=True,
                verbose=False,
                input_names=["inputs"],
                output_names=["outputs"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
        except torch.onnx.errors.OnnxExporterError as error:
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise ExportError(f"PyTorch cannot write this network as ONNX: {reason}; export to .ticket") from error
    assert program is not None  # as it is by the exporter before dynamo's
    proto: onnx.ModelProto = program.model_proto
    for key, value in metadata.items():
        proto.metadata_props.add(key=f"peermask.{key}", value=json.dumps(value))
    data: bytes = proto.SerializeToString()
    return data


def empty_model() -> bytes:
    """A model that gives back the number it takes."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "empty", value[:1], value[1:])
    opsets = [helper.make_opsetid("", 13)]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return data


def measure(data: bytes, module: nn.Module, examples: Tensor) -> Figures:
    _, times = run(data, REPEATS)
    return Figures(len(data), count_parameters(module), count_multiply_adds(module, examples), median(times))


def measure_difference(data: bytes, module: nn.Module, examples: Tensor) -> float:
    """The largest difference of an output, in units of the largest where that is above 1; too much is an error."""
    with torch.no_grad():
        wanted: Tensor = module.eval()(examples)
    (given,) = open_session(data).run(None, {"inputs": examples.numpy()})
    finite = wanted.abs()[wanted > torch.finfo(wanted.dtype).min]  # labels that an agent does not answer are not
    difference = float(np.abs(given - wanted.numpy()).max() / max(1.0, float(finite.max())))
    if not difference <= TOLERANCE:
        raise ExportError(
            f"the output of the ONNX model differs from that of PyTorch by {difference:.2g}, more than {TOLERANCE:g}"
        )
    return difference


def open_session(data: bytes, name: str = "the model") -> onnxruntime.InferenceSession:
    """Open a model in onnxruntime on one thread; from bytes, so that a file cannot name others to read."""
    try:
        return make_session(data)
    except Exception as error:  # onnxruntime's own, without a common base
        raise ExportError(f"{name} is not a model that onnxruntime reads: {str(error).splitlines()[0]}") from None


def metadata_of(session: onnxruntime.InferenceSession) -> dict[str, Any]:
    """Read what `peermask export` wrote into a file; text that is not JSON is left out."""
    found = {}
    for key, text in session.get_modelmeta().custom_metadata_map.items():
        with suppress(ValueError, RecursionError):
            found[key.removeprefix("peermask.")] = json.loads(text)
    return found


# ONNX weights as small integers. With signed constants a kept weight is c or -c, so that its sign says all:
#
#     w = c · s,  s in {-1, 0, 1}
#
# s is stored in 8, 4 or 2 bits and c once for each layer; DequantizeLinear gives w back, exactly. Activations and sums
# stay float32: the file gets smaller, and the model computes what it did.

BITS = {"int8": 8, "int4": 4, "int2": 2}
OPSETS = {"int8": 13, "int4": 21, "int2": 25}  # the first whose DequantizeLinear takes them


@dataclass(frozen=True)
class Signed:
    data: bytes
    left: dict[str, int]  # layers that stay float32, with how many magnitudes their weights have


def with_signs(data: bytes, precision: Precision) -> Signed:
    """An ONNX model with weights of one magnitude stored as signs."""
    if precision == "float32":
        return Signed(data, {})
    kind = getattr(TensorProto, precision.upper(), None)
    if kind is None:
        raise ExportError(f"--precision {precision}: the installed onnx does not support it; update it, or use int4")
    proto = onnx.load_from_string(data)
    nodes, left = [], {}
    for held in list(proto.graph.initializer):
        if held.data_type != TensorProto.FLOAT or np.prod(held.dims[1:]) == 1:
            continue  # one number for each channel: biases, and how inputs are normalised
        values = numpy_helper.to_array(held)
        magnitudes = np.unique(np.abs(values[values != 0]))
        if len(magnitudes) > 1:
            left[held.name] = len(magnitudes)
            continue
        scale = np.array(magnitudes[0] if len(magnitudes) else 1, np.float32)
        signs, factor = f"{held.name}/signs", f"{held.name}/magnitude"
        raw = pack_signs(np.sign(values).astype(np.int8), BITS[precision])
        proto.graph.initializer.remove(held)
        proto.graph.initializer.append(helper.make_tensor(signs, kind, held.dims, raw, raw=True))
        proto.graph.initializer.append(numpy_helper.from_array(scale, factor))
        nodes.append(helper.make_node("DequantizeLinear", [signs, factor], [held.name]))
    if not nodes:
        raise ExportError(
            f"--precision {precision} holds -c, 0 or c, which no layer's weights are (it needs frozen.init = "
            "'signed-constant' and a method that learns masks); use float32"
        )
    after = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend([*nodes, *after])
    for opset in proto.opset_import:
        if opset.domain == "":
            opset.version = max(opset.version, OPSETS[precision])
    return Signed(proto.SerializeToString(), left)


def pack_signs(signs: NDArray[np.int8], bits: int) -> bytes:
    """Pack signs as two's complement of so many bits, the first in the lowest bits of the first byte, as ONNX does."""
    each = 8 // bits
    flat = np.zeros(-(-signs.size // each) * each, np.uint8)
    flat[: signs.size] = signs.flatten().view(np.uint8) & (2**bits - 1)
    shifts = np.arange(each, dtype=np.uint8) * np.uint8(bits)
    parts: NDArray[np.uint8] = flat.reshape(-1, each) << shifts
    whole: NDArray[np.uint8] = np.bitwise_or.reduce(parts, axis=1)  # [bytes]
    return whole.tobytes()
