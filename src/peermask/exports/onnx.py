"""An agent's model as ONNX, its dead filters removed, compared with PyTorch in onnxruntime before it is written."""

from __future__ import annotations

import json
import logging
import time
import warnings
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from peermask.errors import ExportError
from peermask.exports.count import multiply_adds, parameters
from peermask.exports.slim import NotSlimmable, slim
from peermask.streams import stream

try:
    import onnx
    import onnxruntime
    import onnxscript  # noqa: F401 (torch's exporter needs it)
except ImportError as error:
    raise ExportError(f"ONNX needs {error.name}; install it with: pip install 'peermask[export]'") from error

TOLERANCE = 1e-4
TRIALS = 8  # images on which PyTorch and onnxruntime are compared
REPEATS = 30

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Figures:
    size: int  # bytes
    parameters: int
    multiply_adds: int
    latency: float  # seconds for one image in onnxruntime


@dataclass(frozen=True)
class OnnxModel:
    data: bytes
    full: Figures
    slim: Figures | None  # None where nothing could be removed
    removed: dict[str, int]  # filters, by layer
    obstacle: str | None  # why not, in one line
    difference: float  # the largest, between the file in onnxruntime and the agent's model in PyTorch


def make_onnx(module: nn.Module, shape: Shape, metadata: dict[str, Any]) -> OnnxModel:
    full_data = to_onnx(module, shape, metadata)
    full = figures(full_data, module, shape)
    try:
        cut = slim(module, shape)
    except NotSlimmable as error:
        return OnnxModel(full_data, full, None, {}, str(error), _verified(full_data, module, shape))
    data = to_onnx(cut.module, shape, metadata)
    return OnnxModel(data, full, figures(data, cut.module, shape), cut.removed, None, _verified(data, module, shape))


def to_onnx(module: nn.Module, shape: Shape, metadata: dict[str, Any]) -> bytes:
    """For any number of images at once: `images` [batch, C, H, W], normalised, to `logits` [batch, classes]."""
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # like the log above: warnings about the exporter itself
        program = torch.onnx.export(
            module.eval(),
            (torch.zeros(2, *shape),),
            dynamo=True,
            verbose=False,
            input_names=["images"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
    if program is None:
        raise ExportError("PyTorch's ONNX exporter returned no program")
    proto: onnx.ModelProto = program.model_proto
    for key, value in metadata.items():
        proto.metadata_props.add(key=f"peermask.{key}", value=json.dumps(value))
    data: bytes = proto.SerializeToString()
    return data


def figures(data: bytes, module: nn.Module, shape: Shape) -> Figures:
    return Figures(len(data), parameters(module), multiply_adds(module, shape), latency(data, shape))


def latency(data: bytes, shape: Shape) -> float:
    """The median time of one image, on one thread."""
    session = _session(data)
    image = _images(shape, 1).numpy()
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        session.run(None, {"images": image})
        times.append(time.perf_counter() - begun)
    return median(times)


def _verified(data: bytes, module: nn.Module, shape: Shape) -> float:
    """The largest difference of a logit; no file is written if it exceeds the tolerance."""
    images = _images(shape, TRIALS)
    with torch.no_grad():
        wanted: Tensor = module.eval()(images)
    (given,) = _session(data).run(None, {"images": images.numpy()})
    difference = float(np.abs(given - wanted.numpy()).max())
    if not difference <= TOLERANCE:
        raise ExportError(
            f"the output of the ONNX model differs from that of PyTorch by {difference:.2g}, more than {TOLERANCE:g}"
        )
    return difference


def _session(data: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def _images(shape: Shape, count: int) -> Tensor:
    """Noise over the range of normalised pixels, always the same."""
    pixels = 2.0 * stream(0, "export/trial").uniform(count * int(np.prod(shape))) - 1.0
    return torch.from_numpy(pixels.astype(np.float32)).view(count, *shape)
