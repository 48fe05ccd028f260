"""`peermask node`: one agent of a fleet, on this device; `peermask swarm`: all of them on one machine, with a table."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from peermask.cli.options import Device, FleetFile, Import, Interrupt, Quiet, import_plugins, print_result
from peermask.errors import NodeError, PeermaskError
from peermask.fleet.environment import Line

if TYPE_CHECKING:
    from peermask.fleet.status import Report
    from peermask.fleet.swarm import SwarmProcess

Insecure = Annotated[
    bool, typer.Option("--insecure", help="No certificates: no encryption, and anybody can join. Only for trials.")
]

Metrics = Annotated[
    str | None,
    typer.Option(metavar="PORT", help="Serve Prometheus metrics at /metrics and health at /healthz, on loopback."),
]
MetricsHost = Annotated[
    str | None, typer.Option(help="Serve them on this address instead; any non-loopback address exposes them.")
]


def node(
    fleet: FleetFile,
    agent: Annotated[int, typer.Option(min=0, help="Which agent of the fleet this is.")],
    out: Annotated[Path | None, typer.Option(help="Its folder; runs/NAME-RUN/agents/agent-N by default.")] = None,
    insecure: Insecure = False,
    device: Device = "cpu",
    events: Annotated[bool, typer.Option("--events", help="Print a line of JSON per round.")] = False,
    log: Annotated[str, typer.Option(help="text, or json: one object per line on stdout.")] = "text",
    metrics: Metrics = None,
    metrics_host: MetricsHost = None,
    stalled_after: Annotated[
        float | None,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="Failing if no round ends for this many seconds; by default twice the longest limit, plus 30.",
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Stop if the retention is above what `peermask profile` measured."),
    ] = None,
    import_: Import = None,
) -> int:
    """Run one agent of a fleet on this device.

    Restarted after a crash or a stop, it resumes from its last checkpoint.
    """
    from peermask.fleet.journal import ranges
    from peermask.fleet.start import run_node

    import_plugins(import_)
    if profile is not None:
        check_profile(profile, fleet, agent)
    if log not in ("text", "json") or (events and log == "json"):
        raise NodeError(
            f"--log {log!r}{' with --events' if events else ''}: give --log text or --log json, or --events"
        )
    observer = Events(agent) if events else JsonLines(agent) if log == "json" else Lines(agent)
    address = metrics_address(metrics, metrics_host)
    with private_files(), Interrupt() as interrupt, observer.failing():

        def should_stop() -> bool:
            return interrupt.requested() or observer.unread

        result = run_node(
            fleet,
            agent,
            observer,
            out=out,
            insecure=insecure,
            device=device,
            should_stop=should_stop,
            metrics=address,
            stalled_after=stalled_after,
        )
    for j, rounds in result.absent.items():
        text = f"agent {j} was missing in {len(rounds)} of the rounds: {ranges(rounds)}"
        observer.say(Line(text, "missing", neighbour=j, rounds=len(rounds)))
    if result.status == "interrupted":
        observer.say(Line("interrupted and saved; rerun the same command to resume", "interrupted"))
        return interrupt.exit_code if interrupt.requested() else 128 + signal.SIGPIPE
    observer.end(result.out)
    return 0


@contextmanager
def private_files() -> Iterator[None]:
    """Files that are written meanwhile are readable only by their owner: masks and checkpoints tell of the data."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def metrics_address(metrics: str | None, host: str | None) -> tuple[str, int] | None:
    """Loopback, unless an address was named for that very purpose."""
    from peermask.page_server import is_loopback

    if metrics is None:
        if host is not None:
            raise NodeError(f"--metrics-host {host} without --metrics; give the port as well, such as --metrics 9464")
        return None
    named, _, port = metrics.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise NodeError(f"--metrics {metrics!r} is not a port, such as 9464")
    if named and host is None and not is_loopback(named.strip("[]")):
        raise NodeError(
            f"--metrics {metrics}: this would expose them on {named}; to allow it, give --metrics {port} "
            f"--metrics-host {named}"
        )
    return host or named.strip("[]") or "127.0.0.1", int(port)


def check_profile(path: Path, fleet: Path, agent: int) -> None:
    """That this device can carry the agent it is given. All agents know each other's retention, so it cannot change."""
    from peermask.cli.fleet import retentions_by
    from peermask.fleet.fleet import load_fleet

    loaded = load_fleet(fleet)
    wanted = loaded.retentions()[loaded.member(agent).agent]
    allowed = retentions_by([path], loaded.experiment)[0]
    if wanted > allowed:
        raise NodeError(
            f"agent {agent} keeps {wanted:g} of the weights, this device can run {allowed:g} according to {path}; "
            "write the fleet file with `peermask fleet new --profile`"
        )


class Lines:
    """For people: a line per evaluation on stdout, everything unusual on stderr. It continues if stdout is closed."""

    def __init__(self, agent: int) -> None:
        self.agent = agent
        self.shown = 0  # the round of the last evaluation that was printed
        self.unread = False  # whether the reader of the events is gone

    def say(self, line: str) -> None:
        printed(sys.stderr, f"agent {self.agent}: {line}")

    def end(self, out: Path) -> None:
        """The run is finished."""
        print(out)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Exceptions are reported by the caller."""
        yield

    def round(self, report: Report) -> None:
        from peermask.task import figure_name, format_bytes, format_figure

        if report.accuracy is not None and report.evaluated != self.shown:
            self.shown = report.evaluated
            reached = f"{figure_name(report.figure)} {format_figure(report.figure, report.accuracy)}"
            printed(
                sys.stdout,
                f"round {report.round}/{report.rounds}  {reached}  "
                f"sent {format_bytes(report.sent_bytes)}  neighbours {report.alive} of {report.neighbours}",
            )


class Events(Lines):
    """For programs: a line of JSON per round. If the program is gone, the agent stops as by SIGTERM."""

    def round(self, report: Report) -> None:
        self.unread = not printed(sys.stdout, json.dumps(asdict(report))) or self.unread

    def end(self, out: Path) -> None: ...


class JsonLines(Lines):
    """For log collectors: the lines for people as objects, all on stdout."""

    def __init__(self, agent: int) -> None:
        super().__init__(agent)
        self.last = 0  # round

    def say(self, line: str) -> None:
        said = Line.of(line)
        self._write(said.level, said.event, message=str(said), **said.fields)

    def round(self, report: Report) -> None:
        self.last = report.round
        if report.accuracy is not None and report.evaluated != self.shown:
            self.shown = report.evaluated
            figures = {report.figure: report.accuracy, "loss": report.loss, "sent_bytes": int(report.sent_bytes)}
            there = {"alive": report.alive, "neighbours": report.neighbours}
            self._write("info", "evaluation", rounds=report.rounds, **figures, **there)

    def end(self, out: Path) -> None:
        self._write("info", "finished", out=str(out))

    @contextmanager
    def failing(self) -> Iterator[None]:
        try:
            yield
        except PeermaskError as error:
            self._write("error", "failed", message=" ".join(str(error).split()), exit=error.exit_code)
            raise

    def _write(self, level: str, event: str, **fields: object) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        about = {"time": now, "level": level, "agent": self.agent, "round": self.last, "event": event}
        printed(sys.stdout, json.dumps(about | fields))


def printed(stream: TextIO, line: str) -> bool:
    """Write a line at once, since two threads may; returns whether stdout is still open."""
    try:
        stream.write(f"{line}\n")
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # or leaving would fail for what is still unwritten
        return False
    return True


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
