"""`peermask swarm`: all agents of a fleet on this machine, with a live table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from peermask.cli.node import Insecure, private_files
from peermask.cli.options import FleetFile, Import, Interrupt, Quiet, import_plugins, print_result

if TYPE_CHECKING:
    from peermask.fleet.swarm import SwarmProcess


def swarm(
    fleet: FleetFile,
    out: Annotated[Path | None, typer.Option(help="The run folder; runs/NAME-RUN by default.")] = None,
    insecure: Insecure = False,
    metrics: Annotated[
        int | None, typer.Option(min=1, max=65_000, help="First of the ports for the agents' metrics, on loopback.")
    ] = None,
    quiet: Quiet = False,
    import_: Import = None,
) -> int:
    """Run a whole fleet as processes of this machine.

    They are collected into an ordinary run folder; rerun the same command to resume.
    """
    from peermask.fleet.swarm import run_swarm

    import_plugins(import_)
    console, errors = Console(quiet=quiet), Console(stderr=True)
    if insecure:
        errors.print(
            "INSECURE: no certificates; anyone who can connect to these ports can read, forge and stop this run"
        )
    with private_files(), Interrupt() as interrupt, _live(console) as show:
        result = run_swarm(fleet, out, insecure=insecure, show=show, should_stop=interrupt.requested, metrics=metrics)
    for agent, words in result.failed.items():
        errors.print(f"agent {agent} {words}", soft_wrap=True, highlight=False)
    if result.interrupted:
        console.print("interrupted and saved; rerun the same command to resume")
        return interrupt.exit_code
    if result.run is None:
        return 1
    print_result(console, result.run)
    print(result.run.root)
    return 1 if result.failed else 0


@contextmanager
def _live(console: Console) -> Iterator[Callable[[Sequence[SwarmProcess]], None]]:
    """A table that follows the agents on a terminal; nothing elsewhere."""
    if not console.is_terminal or console.quiet:
        yield lambda _: None
        return
    with Live(console=console, refresh_per_second=5, transient=True) as live:
        yield lambda members: live.update(_table(members))


def _table(members: Sequence[SwarmProcess]) -> Table:
    from peermask.task import format_bytes, format_figure

    table = Table(title="fleet", title_justify="left")
    for heading in ("agent", "state", "round", "accuracy", "sent", "neighbours", "missing"):
        table.add_column(heading, justify="left" if heading == "state" else "right")
    for member in members:
        report = member.report
        if not report:
            table.add_row(str(member.agent), member.state)
            continue
        accuracy = report["accuracy"]
        table.add_row(
            str(member.agent),
            member.state,
            f"{report['round']}/{report['rounds']}",
            "-" if accuracy is None else format_figure(report.get("figure", "accuracy"), accuracy),
            format_bytes(report["sent_bytes"]),
            f"{report['alive']} of {report['neighbours']}",
            " ".join(str(absence["neighbour"]) for absence in report["absent"]),
        )
    return table
