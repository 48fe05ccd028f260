"""`peermask profile`: what a model costs on this machine, and which retention it can carry."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer
from rich.console import Console
from rich.table import Table

from peermask.cli.options import Import, Json, import_plugins
from peermask.errors import ExportError
from peermask.task import format_bytes

if TYPE_CHECKING:
    from peermask.exports.profile import Profile

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
    _print(made, Console(highlight=False, markup=False))
    if to is not None:
        print(to)


def _print(made: Profile, console: Console) -> None:
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
