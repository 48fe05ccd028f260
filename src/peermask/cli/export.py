"""`peermask export`, `predict` and `evaluate`: models to take away, and what they answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peermask.cli.options import Import, Json, import_plugins
from peermask.errors import ExportError
from peermask.task import figure_name, format_figure

if TYPE_CHECKING:
    from peermask.exports.predict import Accuracy, Prediction


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    agent: Annotated[str, typer.Option(metavar="N|all", help="Which agent's model, or all.")],
    to: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="File to write: .ticket, .onnx or .safetensors; for all agents with {agent} in its name.",
        ),
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    precision: Annotated[
        str,
        typer.Option(
            help="Type of weights in .onnx: float32, or int8, int4, int2, which store signed constants exactly."
        ),
    ] = "float32",
    json_: Json = False,
    import_: Import = None,
) -> None:
    """Write an agent's personal model: ticket, ONNX or safetensors.

    A ticket is a seed and a mask; of an ONNX model dead filters are removed.
    """
    from peermask.exports.write import export as write
    from peermask.exports.write import export_all

    if agent != "all" and not (agent.isascii() and agent.removeprefix("-").isdigit()):
        raise ExportError(f"--agent {agent!r}: must be the number of an agent, or all")
    import_plugins(import_)
    if agent == "all":
        made = export_all(run, to, force=force, precision=precision)
    else:
        made = [write(run, int(agent), to, force=force, precision=precision)]
    if json_:
        about = ({"agent": one.agent, "file": str(one.path), "bytes": one.size, "lines": one.lines} for one in made)
        print(json.dumps(list(about), indent=2))
        return
    for one in made:
        for line in one.lines:
            print(line)
        print(one.path)


# `peermask predict`: what an exported model says about images or other inputs.


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

    import_plugins(import_)
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


# `peermask evaluate`: what exported models reach on a dataset.


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

    Samples of the labels that their agents learned are counted apart from all. Other figures of the task follow.
    """
    from peermask.config.choice import choose
    from peermask.config.file import split_override
    from peermask.data import datasets
    from peermask.exports.predict import evaluate

    import_plugins(import_)
    chosen = choose(datasets, "dataset", {"name": dataset, **dict(map(split_override, set_ or ()))})
    data = datasets[chosen.name].make(**dict(chosen.options))
    found = {path: evaluate(path, data, weights=weights) for path in models}
    if json_:
        print(json.dumps([_evaluate_table(path, one, confusion=confusion) for path, one in found.items()], indent=2))
        return
    for path, one in found.items():
        if len(found) > 1:
            print(path)
        _print(one, confusion=confusion)


def _print(found: Accuracy, *, confusion: bool) -> None:
    if found.task != "classification":
        for name, value in found.figures.items():
            print(f"{figure_name(name)}: {format_figure(name, value)} ({found.samples} samples)")
        return
    if found.own_samples:
        print(f"its own labels: {_share(found.own_right, found.own_samples)}")
    print(f"all labels: {_share(found.right, found.samples)}")
    if found.own_samples:
        print(f"macro F1 of its own labels: {format_figure('macro_f1', found.figures['macro_f1_own'])}")
    print(f"macro F1 of all labels: {format_figure('macro_f1', found.figures['macro_f1'])}")
    print(f"answers were chosen among {'its own' if found.readout == 'own' else 'all'} labels")
    if confusion and found.confusion is not None:
        print("label by answer:")
        for row in found.confusion.tolist():
            print(" ".join(f"{count:5d}" for count in row))


def _evaluate_table(path: Path, found: Accuracy, *, confusion: bool) -> dict[str, Any]:
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
