"""FLEET, the argument of all commands on a fleet: its file, read with the plug-ins that it needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peermask.cli.imports import bring

if TYPE_CHECKING:
    from peermask.node.fleet import Fleet

FleetFile = Annotated[Path, typer.Argument(metavar="FLEET", help="The fleet file, the same on every device.")]


def read_fleet(path: Path, imports: list[str] | None) -> Fleet:
    """Import what the user named, and read the file."""
    from peermask.node.fleet_file import load_fleet

    bring(imports)
    return load_fleet(path)
