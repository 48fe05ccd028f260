"""What a ticket says about files: images, or raw inputs in .npy files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from peermask.data.normalisation import Range
from peermask.errors import ExportError
from peermask.exports.raw_files import read_rows
from peermask.exports.rebuild import rebuild
from peermask.exports.ticket import Header, read_ticket


@dataclass(frozen=True)
class Prediction:
    """Of one input.

    Attributes:
        image: The file.
        classes: Most probable first; of a regression the names of its outputs.
        probabilities: Of each of them; of a regression the values, in the targets' units.
        row: Which input of a .npy file; None for an image.
        task: The ticket's.
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
    read = read_ticket(ticket)
    module = rebuild(read, str(ticket), weights=weights)
    predictions = []
    for path in map(Path, images):
        for row, inputs in _inputs(path, read.header):
            with torch.no_grad():
                outputs: Tensor = module(inputs[None])[0]
            predictions.append(_prediction(path, row, outputs, read.header, top))
    return predictions


def _inputs(path: Path, header: Header) -> Iterator[tuple[int | None, Tensor]]:
    """Raw inputs, as the module takes them."""
    shape = header.architecture.shape
    if path.suffix == ".npy" and header.inputs is not None:
        yield from enumerate(read_rows(path, shape, header.inputs.dtype, header.inputs.vocabulary))
        return
    if len(shape) != 3:
        raise ExportError(f"{path} is no .npy file; the model takes inputs of {shape}, in a .npy file of [n, ...]")
    from peermask.exports.images import read_image  # Pillow is optional

    pixels = read_image(path, (shape[0], shape[1], shape[2]))  # [C, H, W] in [0, 1]
    if header.inputs is None:
        yield None, pixels.sub(0.5).div(0.5)
        return
    how = header.inputs.normalisation
    low, high = (
        (how.low, how.high) if isinstance(how, Range) else (0.0, 255.0 if header.inputs.dtype == "uint8" else 1.0)
    )
    yield None, low + pixels * (high - low)


def _prediction(path: Path, row: int | None, outputs: Tensor, header: Header, top: int) -> Prediction:
    task = "classification" if header.inputs is None else header.inputs.task
    if task == "regression":
        return Prediction(path, header.classes, tuple(outputs.tolist()), row, task)
    chances = outputs.softmax(0) if task == "classification" else outputs.sigmoid()
    values, places = chances.topk(min(top, len(set(header.answers))))
    names = tuple(header.classes[place] for place in places.tolist())
    return Prediction(path, names, tuple(values.tolist()), row, task)
