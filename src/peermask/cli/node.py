"""`peermask node`: one agent of a fleet, on this device."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peermask.cli.interrupt import Interrupt

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
) -> int:
    """Run one agent of a fleet on this device.

    Started again after a crash or a stop, it goes on from its last checkpoint.
    """
    from peermask.node.journal import ranges
    from peermask.node.start import run_node

    observer = Events(agent) if events else Lines(agent)
    with Interrupt() as interrupt:
        result = run_node(
            fleet, agent, observer, out=out, insecure=insecure, device=device, should_stop=interrupt.requested
        )
    for j, rounds in result.absent.items():
        observer.say(f"agent {j} was missing in {len(rounds)} of the rounds: {ranges(rounds)}")
    if result.status == "interrupted":
        observer.say("stopped and saved; the same command goes on")
        return interrupt.exit_code
    if not events:
        print(result.out)
    return 0


class Lines:
    """For people: a line per evaluation on stdout, all that is unusual on stderr."""

    def __init__(self, agent: int) -> None:
        self.agent = agent
        self.shown = 0  # the round of the last evaluation that was printed

    def say(self, line: str) -> None:
        print(f"agent {self.agent}: {line}", file=sys.stderr, flush=True)

    def round(self, report: Report) -> None:
        from peermask.reports.tables import bytes_human

        if report.accuracy is not None and report.evaluated != self.shown:
            self.shown = report.evaluated
            print(
                f"round {report.round}/{report.rounds}  accuracy {100 * report.accuracy:.1f} %  "
                f"sent {bytes_human(report.sent_bytes)}  neighbours {report.alive} of {report.neighbours}",
                flush=True,
            )


class Events(Lines):
    """For programs: a line of JSON per round."""

    def round(self, report: Report) -> None:
        print(json.dumps(asdict(report)), flush=True)
