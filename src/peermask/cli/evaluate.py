"""`peermask evaluate`: what exported models reach on a dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peermask.cli.export import Json
from peermask.cli.imports import Import, bring

if TYPE_CHECKING:
    from peermask.exports.measure import Accuracy


def evaluate(
    models: Annotated[list[Path], typer.Argument(metavar="MODEL...", help="Files: .ticket, .onnx or .safetensors.")],
    dataset: Annotated[str, typer.Option(help="Name of a dataset; see `peermask list datasets`.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the dataset, e.g. path=x.npz.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="The given weights, if tickets are masks over such.")] = None,
    confusion: Annotated[bool, typer.Option("--confusion", help="Print the confusion matrix.")] = False,
    json_: Json = False,
    import_: Import = None,
) -> None:
    """Test exported models and print their accuracy.

    Their accuracy, once on the labels their agents learned and once on all, and other figures of their task.
    """
    from peermask.data import datasets
    from peermask.experiment.choice import choose
    from peermask.experiment.toml_values import split_override
    from peermask.exports.measure import evaluate

    bring(import_)
    chosen = choose(datasets, "dataset", {"name": dataset, **dict(map(split_override, set_ or ()))})
    data = datasets[chosen.name].make(**dict(chosen.options))
    found = {path: evaluate(path, data, weights=weights) for path in models}
    if json_:
        print(json.dumps([_table(path, one, confusion=confusion) for path, one in found.items()], indent=2))
        return
    for path, one in found.items():
        if len(found) > 1:
            print(path)
        _print(one, confusion=confusion)


def _print(found: Accuracy, *, confusion: bool) -> None:
    from peermask.experiment.shown import name_of, shown

    if found.task != "classification":
        for name, value in found.figures.items():
            print(f"{name_of(name)}: {shown(name, value)} ({found.samples} samples)")
        return
    if found.own_samples:
        print(f"its own labels: {_share(found.own_right, found.own_samples)}")
    print(f"all labels: {_share(found.right, found.samples)}")
    print(f"macro F1: {shown('macro_f1', found.figures['macro_f1'])}")
    print(f"answers were chosen among {'its own' if found.readout == 'own' else 'all'} labels")
    if confusion and found.confusion is not None:
        print("label by answer:")
        for row in found.confusion.tolist():
            print(" ".join(f"{count:5d}" for count in row))


def _table(path: Path, found: Accuracy, *, confusion: bool) -> dict[str, Any]:
    table = {"file": str(path), "task": found.task, "samples": found.samples, **found.figures}
    if found.task != "classification":
        return table
    own = found.own_right / found.own_samples if found.own_samples else None
    table |= {"readout": found.readout, "own_labels_accuracy": own, "own_labels_samples": found.own_samples}
    if confusion and found.confusion is not None:
        table["confusion"] = found.confusion.tolist()
    return table


def _share(right: int, samples: int) -> str:
    return f"{100 * right / samples:.2f} % ({right} of {samples})"
