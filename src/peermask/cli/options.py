"""Options and output that several commands share, and interruption."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peermask.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from peermask.fleet.fleet import Fleet
    from peermask.store.result import StoredRun

Import = Annotated[
    list[str] | None,
    typer.Option("--import", metavar="FILE|MODULE", help="Import a plug-in, your own code: a .py file or a module."),
]
Config = Annotated[Path | None, typer.Argument(help="A TOML file; without one, the default experiment.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. algorithm.lr=0.1.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for other programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the run folder only.")]


def import_plugins(imports: Sequence[str] | None) -> None:
    """Import what the user named."""
    if imports:
        from peermask.plugins import load_plugins

        load_plugins(imports)


def parse_seeds(text: str) -> list[int]:
    """`3` means 0, 1, 2; `4,7` means those."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(f"--seeds {text!r}: must be how many, such as 3, or a list of whole numbers, such as 0,1,2")
    values = [int(part) for part in parts]
    if len(values) == 1 and "," not in text:
        if not 1 <= values[0] <= 1000:
            raise ConfigError(f"--seeds {text!r}: must be from 1 to 1000 seeds, or a list such as 0,1,2")
        return list(range(values[0]))
    if len(set(values)) < len(values) or max(values) >= 2**63:
        raise ConfigError(f"--seeds {text!r}: every seed must be given once, and be below 2^63")
    return values


# Ctrl-C and SIGTERM finish the round and save; a second one stops immediately.


class Interrupt:
    def __init__(self) -> None:
        self._signal = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def requested(self) -> bool:
        return self._signal != 0

    @property
    def exit_code(self) -> int:
        """The code that a shell expects after this signal; SIGTERM if another rank got it."""
        return 128 + (self._signal or signal.SIGTERM)

    def _heard(self, number: int, _frame: FrameType | None) -> None:
        if self._signal:
            raise KeyboardInterrupt
        self._signal = number


# FLEET, the argument of all commands on a fleet: its file, read with the plug-ins that it needs.

FleetFile = Annotated[Path, typer.Argument(metavar="FLEET", help="The fleet file, the same on every device.")]


def read_fleet(path: Path, imports: list[str] | None) -> Fleet:
    """Import what the user named, and read the file."""
    from peermask.fleet.fleet import load_fleet

    import_plugins(imports)
    return load_fleet(path)


def open_fleet(path: Path, imports: list[str] | None) -> tuple[Fleet, Path]:
    """The fleet in a file, and the folder of its certificates."""
    from peermask.fleet.fleet import certificates_of

    fleet = read_fleet(path, imports)
    return fleet, certificates_of(path, fleet)


# Output: the result of a run, and the progress of many.


def print_result(console: Console, result: StoredRun) -> None:
    from peermask.reports.tables import agents_table, closing_lines

    console.print(agents_table(result))
    for line in closing_lines(result):
        console.print(line, soft_wrap=True, highlight=False)


def print_progress(console: Console) -> Callable[[int, int, str], None]:
    """Return a function that prints how many runs have ended, and after how long."""
    begun = time.monotonic()

    def tell(done: int, total: int, name: str) -> None:
        line = f"{time.monotonic() - begun:7.0f} s  {done:4d} of {total}  {name}"
        console.print(line, soft_wrap=True, highlight=False)

    return tell
