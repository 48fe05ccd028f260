"""`peermask export`: agents' models to take away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from peermask.cli.imports import Import, bring
from peermask.errors import ExportError

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]


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
    bring(import_)
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
