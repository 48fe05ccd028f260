"""`peermask predict`: what a ticket says about images or other inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peermask.cli.imports import Import, bring


def predict(
    ticket: Annotated[Path, typer.Argument(help="A .ticket file.")],
    images: Annotated[
        list[Path], typer.Argument(help="Image files, scaled to the model's size, or .npy files of raw inputs.")
    ],
    top: Annotated[int, typer.Option(min=1, help="How many classes to print.")] = 3,
    weights: Annotated[Path | None, typer.Option(help="The weights it is a mask over, if those were given.")] = None,
    import_: Import = None,
) -> None:
    """Print what a ticket says: the most probable classes, or values."""
    from peermask.exports.predict import predict as classify

    bring(import_)
    for found in classify(ticket, images, top, weights):
        where = found.image if found.row is None else f"{found.image} row {found.row}"
        pairs = zip(found.classes, found.probabilities, strict=True)
        if found.task == "regression":
            print(f"{where}: " + ", ".join(f"{name} {value:.6g}" for name, value in pairs))
        else:
            print(f"{where}: " + ", ".join(f"{name} {100 * chance:.1f} %" for name, chance in pairs))
