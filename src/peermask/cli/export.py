"""`peermask export`: one agent's model to take away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peermask.experiment.result import RunResult
from peermask.export.write import export_agent


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    agent: Annotated[int, typer.Option(help="Which agent's model.")],
    to: Annotated[Path, typer.Option(help="The file; its suffix says what: .ticket, .onnx or .safetensors.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write an agent's personal model: a ticket (seed and mask), a slimmed ONNX model, or its weights."""
    exported = export_agent(RunResult.open(run), agent, to, force=force)
    for line in exported.lines:
        print(line)
    print(exported.path)
