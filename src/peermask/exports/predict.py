"""What a ticket says about image files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from peermask.exports.images import read_image
from peermask.exports.rebuild import rebuild
from peermask.exports.ticket import read_ticket


@dataclass(frozen=True)
class Prediction:
    image: Path
    classes: tuple[str, ...]  # most probable first
    probabilities: tuple[float, ...]


def predict(ticket: Path | str, images: Sequence[Path | str], top: int = 3) -> list[Prediction]:
    """The classes of image files, by probability."""
    read = read_ticket(ticket)
    module = rebuild(read, str(ticket))
    predictions = []
    for path in map(Path, images):
        pixels = read_image(path, read.header.architecture.shape)  # [C, H, W] in [0, 1]
        with torch.no_grad():
            logits: Tensor = module(pixels[None].sub(0.5).div(0.5))
        chances, places = logits[0].softmax(0).topk(min(top, len(set(read.header.answers))))
        names = tuple(read.header.classes[place] for place in places.tolist())
        predictions.append(Prediction(path, names, tuple(chances.tolist())))
    return predictions
