"""Export of personal models: tickets, ONNX, safetensors."""

from typing import Literal, TypeAlias

Precision: TypeAlias = Literal["float32", "int8", "int4", "int2"]  # in which an ONNX file stores weights
