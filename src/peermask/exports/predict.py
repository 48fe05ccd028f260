"""What an exported model says about files: images, or raw inputs in .npy files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from peermask.data.folders import read_pixels
from peermask.data.normalisation import Range
from peermask.errors import DataError, ExportError
from peermask.exports.reader import Model, open_model

# Inputs of an exported model from files, read without trust: rows of a .npy file, or an image.


def read_rows(path: Path, shape: tuple[int, ...], dtype: str, vocabulary: int | None = None) -> Tensor:
    """[n, *shape] of a model's own type: bytes, floats that are finite, or tokens."""
    try:
        with path.open("rb") as file:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            found, _, kind = read(file)
            there = path.stat().st_size - file.tell()
        if kind.hasobject or kind.kind not in "buif":
            raise ExportError(f"{path} holds {kind}; inputs are numbers")
        if math.prod(found) * kind.itemsize != there:
            raise ExportError(f"{path} claims {math.prod(found) * kind.itemsize} bytes and has {there}: it is damaged")
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise ExportError(f"{path} cannot be read: {reason}") from None
    if array.shape == shape:
        array = array[None]
    if array.shape[1:] != shape:
        raise ExportError(f"{path} has shape {array.shape}; the model takes [n, {', '.join(map(str, shape))}]")
    if dtype != "float32" and array.dtype.kind not in "bui":
        raise ExportError(f"{path} holds {array.dtype}; the model takes whole numbers ({dtype})")
    if dtype == "uint8" and array.size and not 0 <= array.min() <= array.max() <= 255:
        raise ExportError(f"{path} has values from {array.min()} to {array.max()}; the model takes 0 to 255")
    if vocabulary is not None and array.size and not 0 <= array.min() <= array.max() < vocabulary:
        raise ExportError(
            f"{path} has tokens from {array.min()} to {array.max()}; the model knows 0 to {vocabulary - 1}"
        )
    rows = torch.from_numpy(array.astype(dtype))
    if rows.is_floating_point() and not bool(torch.isfinite(rows).all()):
        raise ExportError(f"{path} has values that are NaN or infinite")
    return rows


def read_image(path: Path, shape: tuple[int, int, int]) -> Tensor:
    """[C, H, W] float32 in [0, 1]: grey or coloured as the model wants it, scaled to its size."""
    channels, height, width = shape
    try:
        pixels = read_pixels(path, channels, (height, width))
    except DataError as error:
        raise ExportError(str(error)) from error
    return torch.from_numpy(pixels.copy()).float() / 255


@dataclass(frozen=True)
class Prediction:
    """Of one input.

    Attributes:
        image: The file.
        classes: Most probable first; of a regression the names of its outputs.
        probabilities: Of each of them; of a regression the values, in the targets' units.
        row: Which input of a .npy file; None for an image.
        task: The model's.
    """

    image: Path
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    row: int | None = None
    task: str = "classification"


def predict(
    ticket: Path | str, images: Sequence[Path | str], top: int = 3, weights: Path | str | None = None
) -> list[Prediction]:
    """Classes by probability, or the values of a regression, of image files or raw inputs [n, ...] in .npy files."""
    model = open_model(ticket, weights=weights)
    predictions = []
    for path in map(Path, images):
        for row, inputs in _inputs(path, model):
            predictions.append(_prediction(path, row, model.outputs(inputs[None])[0], model, top))
    return predictions


def _inputs(path: Path, model: Model) -> Iterator[tuple[int | None, Tensor]]:
    """Raw inputs, as the model takes them."""
    shape, inputs = model.shape, model.inputs
    if path.suffix == ".npy" and inputs is not None:
        yield from enumerate(read_rows(path, shape, inputs.dtype, inputs.vocabulary))
        return
    if len(shape) != 3:
        raise ExportError(f"{path} is not an .npy file; the model takes inputs of {shape}, in a .npy file of [n, ...]")
    pixels = read_image(path, (shape[0], shape[1], shape[2]))  # [C, H, W] in [0, 1]
    if inputs is None:
        yield None, pixels.sub(0.5).div(0.5)
        return
    how, whole = inputs.normalisation, inputs.dtype == "uint8"
    low, high = (how.low, how.high) if isinstance(how, Range) else (0.0, 255.0 if whole else 1.0)
    raw = low + pixels * (high - low)
    yield None, raw.round().clamp(0, 255).to(torch.uint8) if whole else raw


def _prediction(path: Path, row: int | None, outputs: Tensor, model: Model, top: int) -> Prediction:
    if model.task == "regression":
        return Prediction(path, model.classes, tuple(outputs.tolist()), row, model.task)
    chances = outputs.softmax(0) if model.task == "classification" else outputs.sigmoid()
    values, places = chances.topk(min(top, model.answers))
    names = tuple(model.classes[place] for place in places.tolist())
    return Prediction(path, names, tuple(values.tolist()), row, model.task)
