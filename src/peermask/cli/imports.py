"""`--import`: plug-ins, for every command that may need what they register."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

Import = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="FILE|MODULE", help="Import a plug-in, your own code: a .py file or a module."),
]


def bring(imports: Sequence[str] | None) -> None:
    """Import what the user named."""
    if imports:
        from peermask.plugins import load_plugins

        load_plugins(imports)
