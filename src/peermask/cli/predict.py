"""`peermask predict`: what an exported model says about images or other inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peermask.cli.export import Json
from peermask.cli.imports import Import, bring

if TYPE_CHECKING:
    from peermask.exports.predict import Prediction


def predict(
    model: Annotated[Path, typer.Argument(help="A .ticket, .onnx or .safetensors file.")],
    images: Annotated[
        list[Path], typer.Argument(help="Image files, scaled to the model's size, or .npy files of raw inputs.")
    ],
    top: Annotated[int, typer.Option(min=1, help="How many classes to print.")] = 3,
    weights: Annotated[Path | None, typer.Option(help="The given weights, if the ticket is a mask over such.")] = None,
    json_: Json = False,
    import_: Import = None,
) -> None:
    """Print the predictions of an exported model: classes or values."""
    from peermask.exports.predict import predict as classify

    bring(import_)
    predictions = classify(model, images, top, weights)
    if json_:
        print(json.dumps([_table(found) for found in predictions], indent=2))
        return
    for found in predictions:
        where = found.image if found.row is None else f"{found.image} row {found.row}"
        pairs = zip(found.classes, found.probabilities, strict=True)
        if found.task == "regression":
            print(f"{where}: " + ", ".join(f"{name} {value:.6g}" for name, value in pairs))
        else:
            print(f"{where}: " + ", ".join(f"{name} {100 * chance:.1f} %" for name, chance in pairs))


def _table(found: Prediction) -> dict[str, Any]:
    where: dict[str, Any] = {"file": str(found.image), **({} if found.row is None else {"row": found.row})}
    pairs = zip(found.classes, found.probabilities, strict=True)
    if found.task == "regression":
        return {**where, "values": [{"output": name, "value": value} for name, value in pairs]}
    return {**where, "classes": [{"class": name, "probability": chance} for name, chance in pairs]}
