"""`peermask export`: one agent's model to take away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peermask.cli.imports import Import, bring


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    agent: Annotated[int, typer.Option(help="Which agent's model.")],
    to: Annotated[Path, typer.Option(help="The file; its suffix says what: .ticket, .onnx or .safetensors.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    import_: Import = None,
) -> None:
    """Write an agent's personal model: ticket, ONNX or safetensors.

    A ticket is a seed and a mask; of an ONNX model dead filters are removed.
    """
    from peermask.exports.write import export as write

    bring(import_)
    exported = write(run, agent, to, force=force)
    for line in exported.lines:
        print(line)
    print(exported.path)
