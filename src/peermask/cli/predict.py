"""`peermask predict`: what a ticket sees in images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def predict(
    ticket: Annotated[Path, typer.Argument(help="A .ticket file.")],
    images: Annotated[list[Path], typer.Argument(help="Image files; they are scaled to the model's size.")],
    top: Annotated[int, typer.Option(min=1, help="How many classes to print.")] = 3,
) -> None:
    """Print what a ticket sees in images: the most probable classes."""
    from peermask.exports.predict import predict as classify  # Pillow is optional

    for found in classify(ticket, images, top):
        chances = zip(found.classes, found.probabilities, strict=True)
        print(f"{found.image}: " + ", ".join(f"{name} {100 * chance:.1f} %" for name, chance in chances))
