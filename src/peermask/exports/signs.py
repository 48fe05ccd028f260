"""ONNX weights as small integers. With signed constants a kept weight is c or -c, so that its sign says all:

    w = c · s,  s in {-1, 0, 1}

s is stored in 8, 4 or 2 bits and c once for each layer; DequantizeLinear gives w back, exactly. Activations and sums
stay float32: the file gets smaller, and the model computes what it did.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from peermask.errors import ExportError
from peermask.exports import Precision

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
        raw = packed(np.sign(values).astype(np.int8), BITS[precision])
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


def packed(signs: NDArray[np.int8], bits: int) -> bytes:
    """Two's complement in so many bits each, the first in the lowest bits of the first byte, as ONNX has it."""
    each = 8 // bits
    flat = np.zeros(-(-signs.size // each) * each, np.uint8)
    flat[: signs.size] = signs.flatten().view(np.uint8) & (2**bits - 1)
    shifts = np.arange(each, dtype=np.uint8) * np.uint8(bits)
    parts: NDArray[np.uint8] = flat.reshape(-1, each) << shifts
    whole: NDArray[np.uint8] = np.bitwise_or.reduce(parts, axis=1)  # [bytes]
    return whole.tobytes()
