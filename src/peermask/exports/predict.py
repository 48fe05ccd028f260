"""What an exported model says about files: images, or raw inputs in .npy files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from peermask.data.normalisation import Range
from peermask.errors import ExportError
from peermask.exports.input_files import read_image, read_rows
from peermask.exports.reader import Model, open_model


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
