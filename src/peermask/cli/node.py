"""`peermask node`: one agent of a fleet, on this device."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from peermask.cli.imports import Import, bring
from peermask.cli.interrupt import Interrupt
from peermask.errors import NodeError

if TYPE_CHECKING:
    from peermask.node.agent import Report

FleetFile = Annotated[Path, typer.Argument(metavar="FLEET", help="The fleet file, the same on every device.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No certificates: no encryption, and anybody can join. For trials alone.")
]


def node(
    fleet: FleetFile,
    agent: Annotated[int, typer.Option(min=0, help="Which agent of the fleet this is.")],
    out: Annotated[Path | None, typer.Option(help="Its folder; runs/NAME-RUN/agents/agent-N by default.")] = None,
    insecure: Insecure = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "cpu",
    events: Annotated[bool, typer.Option("--events", help="A line of JSON per round, for other programs.")] = False,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Refuse a retention above what `peermask profile` allows here.")
    ] = None,
    import_: Import = None,
) -> int:
    """Run one agent of a fleet on this device.

    Started again after a crash or a stop, it goes on from its last checkpoint.
    """
    from peermask.node.journal import ranges
    from peermask.node.start import run_node

    bring(import_)
    if profile is not None:
        check_profile(profile, fleet, agent)
    observer = Events(agent) if events else Lines(agent)
    with Interrupt() as interrupt:

        def should_stop() -> bool:
            return interrupt.requested() or observer.unread

        result = run_node(fleet, agent, observer, out=out, insecure=insecure, device=device, should_stop=should_stop)
    for j, rounds in result.absent.items():
        observer.say(f"agent {j} was missing in {len(rounds)} of the rounds: {ranges(rounds)}")
    if result.status == "interrupted":
        observer.say("interrupted and saved; rerun the same command to resume")
        return interrupt.exit_code if interrupt.requested() else 128 + signal.SIGPIPE
    if not events:
        print(result.out)
    return 0


def check_profile(path: Path, fleet: Path, agent: int) -> None:
    """That this device can carry the agent it is given. All agents know each other's retention, so it cannot change."""
    from peermask.cli.fleet import retentions_by
    from peermask.node.fleet import load_fleet

    held = load_fleet(fleet)
    wanted = held.retentions()[held.member(agent).agent]
    allowed = retentions_by([path], held.experiment)[0]
    if wanted > allowed:
        raise NodeError(
            f"agent {agent} keeps {wanted:g} of the weights, this device can carry {allowed:g} by {path}; "
            "write the fleet file with `peermask fleet new --profile`"
        )


class Lines:
    """For people: a line per evaluation on stdout, all that is unusual on stderr. With nobody to read, it goes on."""

    def __init__(self, agent: int) -> None:
        self.agent = agent
        self.shown = 0  # the round of the last evaluation that was printed
        self.unread = False  # whether nobody is left for whom it would go on

    def say(self, line: str) -> None:
        printed(sys.stderr, f"agent {self.agent}: {line}")

    def round(self, report: Report) -> None:
        from peermask.experiment.shown import name_of, shown
        from peermask.reports.tables import bytes_human

        if report.accuracy is not None and report.evaluated != self.shown:
            self.shown = report.evaluated
            reached = f"{name_of(report.figure)} {shown(report.figure, report.accuracy)}"
            printed(
                sys.stdout,
                f"round {report.round}/{report.rounds}  {reached}  "
                f"sent {bytes_human(report.sent_bytes)}  neighbours {report.alive} of {report.neighbours}",
            )


class Events(Lines):
    """For programs: a line of JSON per round. If the program is gone, the agent stops as if it had been told to."""

    def round(self, report: Report) -> None:
        self.unread = not printed(sys.stdout, json.dumps(asdict(report))) or self.unread


def printed(stream: TextIO, line: str) -> bool:
    """Write a line in one go, since two threads may; whether somebody reads it."""
    try:
        stream.write(f"{line}\n")
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # or leaving would fail for what is still unwritten
        return False
    return True
