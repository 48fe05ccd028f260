"""`peermask export`, `predict`, `evaluate` and `profile`: models to take away, what they answer, and what they cost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer
from rich.console import Console
from rich.table import Table

from peermask.cli.options import Import, Json, import_plugins
from peermask.errors import ExportError
from peermask.task import figure_name, format_bytes, format_figure

if TYPE_CHECKING:
    from peermask.exports.predict import Accuracy, Prediction
    from peermask.exports.profile import Profile


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


# `peermask profile`: what a model costs on this machine, and which retention it can carry.

TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
SIZES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}


def profile(
    model: Annotated[str, typer.Argument(help="Name of a model; see `peermask list models`.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the model, e.g. width=16.")
    ] = None,
    shape: Annotated[
        str,
        typer.Option(
            metavar="CxHxW", help="Shape of one input: 3x32x32 for an image, 30 for features, 2x100 for a series."
        ),
    ] = "3x32x32",
    classes: Annotated[int, typer.Option(min=1, max=65536, help="How many classes.")] = 10,
    latency: Annotated[str | None, typer.Option(metavar="5ms", help="Limit for one input.")] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="2MB", help="Limit for the memory growth of onnxruntime.")
    ] = None,
    retentions: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Retentions to measure, such as 0.1,0.2; by default seven from 0.1 to 1."),
    ] = None,
    precision: Annotated[
        str, typer.Option(help="Type of weights that the limits apply to: float32 or int8.")
    ] = "float32",
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it as JSON, for `fleet new` and `node`.")
    ] = None,
    json_: Json = False,
    import_: Import = None,
) -> None:
    """Measure what a model costs on this machine, by retention.

    In onnxruntime. Scattered zeros do not make it faster, removed filters do; int8 makes the file smaller.
    """
    from peermask.config.file import split_override
    from peermask.exports import Precision
    from peermask.exports.profile import RETENTIONS, Limits, save_profile
    from peermask.exports.profile import profile as measure

    if precision not in ("float32", "int8"):
        raise ExportError(f"--precision {precision!r} is not one of float32, int8")
    limits = Limits(latency=_amount("--latency", latency, TIMES), memory=_amount("--memory", memory, SIZES))
    chosen = RETENTIONS if retentions is None else _retentions(retentions)
    size = _shape(shape)
    if to is not None and not to.parent.is_dir():
        raise ExportError(f"cannot write {to}: the folder {to.parent} does not exist")
    import_plugins(import_)
    table = {"name": model, **dict(map(split_override, set_ or ()))}
    with Console(stderr=True).status("starting") as status:
        made = measure(
            table, size, classes, limits, chosen, cast(Precision, precision), lambda step: status.update(step)
        )
    if to is not None:
        save_profile(to, made)
    if json_:
        print(made.model_dump_json(indent=2, exclude_none=True))
        return
    _print_profile(made, Console(highlight=False, markup=False))
    if to is not None:
        print(to)


def _print_profile(made: Profile, console: Console) -> None:
    from peermask.exports.profile import Kind, kind_words

    table = Table(title=f"{made.model['name']} on {made.machine}, one input, one thread", title_justify="left")
    for heading in ("kept", "retention", "weights", "latency", "memory", "file", "multiply-adds"):
        table.add_column(heading, justify="left" if heading in ("kept", "weights") else "right")
    for cost in sorted(made.costs, key=lambda cost: (cost.kind, cost.precision, cost.retention)):
        table.add_row(
            kind_words(cost.kind),
            f"{cost.retention:g}",
            cost.precision,
            f"{1000 * cost.latency:.3f} ms",
            format_bytes(cost.memory),
            format_bytes(cost.bytes),
            f"{cost.multiply_adds:,}",
        )
    console.print(table)
    if made.obstacle is not None:
        console.print(f"filters are not measured: {made.obstacle}", soft_wrap=True)
    if made.limits.latency is None and made.limits.memory is None:
        return
    limits = [f"{1000 * made.limits.latency:g} ms"] if made.limits.latency else []
    limits += [format_bytes(made.limits.memory)] if made.limits.memory else []
    for kind in get_args(Kind):
        found = made.retention(kind)
        what = "no retention that was measured" if found is None else f"retention {found:g}"
        console.print(f"{kind_words(kind)}, {made.precision}: {what} meets {' and '.join(limits)}", soft_wrap=True)


def _amount(option: str, text: str | None, units: dict[str, float]) -> float | None:
    if text is None:
        return None
    found = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]+)\s*", text)
    if found is None or found[2] not in units or float(found[1]) <= 0:
        example = "5ms" if units is TIMES else "2MB"
        raise ExportError(f"{option} {text!r}: must be a number and one of {', '.join(units)}, such as {example}")
    return float(found[1]) * units[found[2]]


def _shape(text: str) -> tuple[int, ...]:
    sides = text.split("x")
    if len(sides) > 5 or not all(side.isascii() and side.isdigit() and 1 <= int(side) <= 4096 for side in sides):
        raise ExportError(f"--shape {text!r}: must be sizes with x between them, such as 3x32x32")
    return tuple(map(int, sides))


def _retentions(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value <= 1 for value in values) or len(set(values)) < len(values):
        raise ExportError(f"--retentions {text!r}: must be numbers in (0, 1], each once, such as 0.1,0.2,0.4")
    return values
