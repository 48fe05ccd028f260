"""`peermask fleet operator`, `status`, `push`, `service`, and `peermask relay`: for operators of a fleet."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from peermask.cli.node import Metrics, MetricsHost, metrics_address
from peermask.cli.options import Device, FleetFile, Import, Interrupt, open_fleet, read_fleet
from peermask.errors import NodeError, NotYetError, PeermaskError

if TYPE_CHECKING:
    from peermask.fleet.operator import AgentAnswer

# `peermask fleet operator`, `status`, `push` and `service`: for operators of a fleet.

Operator = Annotated[
    str | None, typer.Option(metavar="NAME", help="Which operator's certificate, if there are several.")
]
Wait = Annotated[float, typer.Option(min=0.1, max=300, help="Seconds to wait for an agent.")]

DEGRADED = 3  # exit code of `fleet status`; 2 is for mistakes
REFUSALS = ("refusals", "out_of_step")  # bad messages, and those of honest neighbours that are late or early
ROSTER_ANSWERS = ("taken", "known already")
HEADINGS = ("agent", "address", "round", "accuracy", "heard", "sent", "received", "last absence", "bad",
            "out of step", "cert days", "roster", "version", "state")  # fmt: skip


def operator(
    path: FleetFile,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Lower-case letters, digits and hyphens.")],
    days: Annotated[int, typer.Option(min=1, max=3650, help="How long the certificate is valid.")] = 90,
    import_: Import = None,
) -> None:
    """Make an operator's certificate, for `status` and `push`."""
    from peermask.fleet.certificates import make_operator

    fleet, folder = open_fleet(path, import_)
    if name in fleet.revoked_operators:
        raise NodeError(f"operator {name} was revoked, and no certificate of that name counts; give another name")
    files = make_operator(folder, name, days)
    print(f"{files.certificate}: with {files.key.name}, {files.ca.name} and {path.name} it is all an operator needs")


def status(
    path: FleetFile,
    operator: Operator = None,
    json_: Annotated[bool, typer.Option("--json", help="Print everything that agents report, as JSON.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.5, max=3600, help="Seconds between two refreshes, with --watch.")] = 5.0,
    wait: Wait = 5.0,
    import_: Import = None,
) -> int:
    """Show the status of every agent.

    The exit code is 1 if one is unreachable or failing, 3 if one is degraded, 0 if all are ok.
    """
    from peermask.fleet.credentials import find_operator
    from peermask.fleet.operator import ask_status

    fleet, folder = open_fleet(path, import_)
    credentials = find_operator(folder, operator)
    if watch and json_:
        raise NodeError("--watch and --json exclude each other; give one of them")
    answers = ask_status(fleet, credentials, wait)
    if json_:
        print(json.dumps([asdict(answer) for answer in answers], indent=2))
    elif watch:
        with Live(_table(answers), console=Console(), auto_refresh=False) as live:
            while True:
                time.sleep(every)
                live.update(_table(ask_status(fleet, credentials, wait)), refresh=True)
    else:
        Console(width=None if sys.stdout.isatty() else 200).print(_table(answers))
    return exit_code_of(answers)


def exit_code_of(answers: Sequence[AgentAnswer]) -> int:
    """By the worst state."""
    states = {answer.state for answer in answers}
    return 1 if states & {"unreachable", "failing"} else DEGRADED if "degraded" in states else 0


def push(path: FleetFile, operator: Operator = None, wait: Wait = 5.0, import_: Import = None) -> int:
    """Send the signed roster in FLEET to every reachable agent.

    The exit code is 1 if none is reachable.
    """
    from peermask.fleet.credentials import find_operator
    from peermask.fleet.operator import push_roster

    fleet, folder = open_fleet(path, import_)
    if fleet.signature is None:
        raise NodeError(f"{path} has no signed roster; `peermask fleet sign {path}` and every change make one")
    answers = push_roster(fleet, find_operator(folder, operator), wait)
    for agent, said in answers.items():
        print(f"agent {agent}: {said}")
    return int(not any(said in ROSTER_ANSWERS for said in answers.values()))


def _table(answers: Sequence[AgentAnswer]) -> Table:
    table = Table(title=f"fleet, {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC", title_justify="left")
    for heading in HEADINGS:
        left = heading in ("address", "last absence", "state")
        table.add_column(heading, justify="left" if left else "right", overflow="fold")
    for answer in answers:
        state = answer.state if answer.trouble is None else f"{answer.state}: {answer.trouble}"
        table.add_row(str(answer.agent), answer.address, *_row(answer.status or {}), state)
    return table


def _row(status: dict[str, Any]) -> list[str]:
    from peermask.task import format_bytes, format_figure

    if not status:
        return ["-"] * (len(HEADINGS) - 3)
    absence, ends, accuracy = status["last_absence"], status["certificate_ends"], status["accuracy"]
    return [
        f"{status['round']}/{status['rounds']}",
        "-" if accuracy is None else format_figure(status["figure"], accuracy),
        f"{status['heard']} of {status['neighbours']}",
        format_bytes(status["sent_bytes"]),
        format_bytes(status["received_bytes"]),
        "-" if absence is None else f"{absence['neighbour']} in {absence['round']}: {absence['why']}",
        *(str(sum(sum(counts.values()) for counts in status.get(kind, {}).values())) for kind in REFUSALS),
        "-" if ends is None else f"{(ends - time.time()) / 86_400:.0f}",
        f"{status['roster']} {status['roster_digest'][:6]}",
        status["version"],
    ]


def service(
    path: FleetFile,
    agent: Annotated[int, typer.Option(min=0, help="Which agent of the fleet the device runs.")],
    user: Annotated[str, typer.Option(help="User that runs it.")] = "peermask",
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the fleet file on the device; the same as here by default.")
    ] = None,
    command: Annotated[
        Path | None, typer.Option(help="Path of the command `peermask` on the device; the same as here by default.")
    ] = None,
    metrics: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of metrics and health.")] = None,
    device: Device = "cpu",
    memory_max: Annotated[
        str | None, typer.Option(metavar="SIZE", help="End it above this much memory, such as 512M or 50%.")
    ] = None,
    cpu_quota: Annotated[
        str | None, typer.Option(metavar="PERCENT", help="Slow it down above this share of one core, such as 80%.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write it here instead of printing it.")] = None,
    import_: Import = None,
) -> None:
    """Print a systemd unit that runs one agent and restarts it."""
    from peermask.files import write_atomically
    from peermask.fleet.service import ServiceLimits, unit

    fleet = read_fleet(path, import_)
    fleet.member(agent)
    where = folder or path.resolve().parent
    program = command or Path(sys.executable).with_name("peermask")
    arguments = ["--agent", str(agent)]
    arguments += ["--device", device] if device != "cpu" else []
    arguments += ["--metrics", str(metrics)] if metrics is not None else []
    for name in fleet.experiment.imports or ():
        arguments += ["--import", name]
    limits = ServiceLimits(memory_max, cpu_quota)
    text = unit(agent, user, where, program, [path.name, *arguments], gpu=device != "cpu", limits=limits)
    if out is None:
        print(text, end="")
        return
    if out.exists():
        raise NodeError(f"{out} exists; give another --out, or delete it")
    write_atomically(out, text.encode())
    print(f"{out}: copy it to /etc/systemd/system on the device, then `systemctl enable --now {out.stem}`")


# `peermask relay`: joins agents of a fleet that cannot dial each other.

POLL = 0.2  # seconds between looks for a signal


def relay(
    path: FleetFile,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to listen, if not at the fleet's `relay` address.")
    ] = None,
    metrics: Metrics = None,
    metrics_host: MetricsHost = None,
    import_: Import = None,
) -> int:
    """Connect agents of a fleet that cannot dial each other.

    It runs until stopped, and can neither read nor forge what passes.
    """
    from peermask.fleet.authority import install_authorities, verifier
    from peermask.fleet.credentials import find_relay
    from peermask.fleet.fleet import split_address
    from peermask.fleet.relay import open_relay
    from peermask.fleet.roster import read_file
    from peermask.fleet.roster_gossip import FileWatch, check_signed, is_later

    fleet, folder = open_fleet(path, import_)
    if fleet.relay is None:
        raise NodeError(
            f'{path} names no relay; add `relay = "host:port"`, and `relayed = true` to agents that need it'
        )
    address, where = metrics_address(metrics, metrics_host), listen or fleet.relay
    credentials = find_relay(folder)
    check_signed(fleet, verifier(credentials.ca))
    install_authorities(credentials.ca, fleet.authorities)
    files = FileWatch(fleet=path, **asdict(credentials))

    def look() -> bool:
        """Take a later roster; returns whether there are other certificates."""
        nonlocal fleet
        changed = files.changed()
        if changed & {"fleet", "ca"}:
            later = read_file(path, fleet, verifier(credentials.ca))
            if is_later(later, fleet):
                fleet = later
                opened.follow(fleet)
                print(f"roster {fleet.serial}: {len(fleet.agents)} agents", flush=True)
                if install_authorities(credentials.ca, fleet.authorities):
                    files.ignore("ca")
                    changed.add("ca")
        return bool(changed - {"fleet"}) and find_relay(folder) is not None

    with Interrupt() as interrupt, ExitStack() as serving, ExitStack() as relaying:
        try:
            opened = relaying.enter_context(open_relay(fleet, credentials, *split_address(where)))
            if address is not None:
                from peermask.fleet.metrics import RelayMetrics, serve_metrics
                from peermask.fleet.status import Health

                relay_metrics = RelayMetrics(lambda: opened.status())
                serving.enter_context(serve_metrics(*address, relay_metrics, Health, partial(print, flush=True)))
            print(f"relay at {where} (Ctrl-C ends it)", flush=True)
            while not interrupt.requested():
                time.sleep(POLL)
                try:
                    if look():
                        relaying.close()  # agents dial again at once
                        opened = relaying.enter_context(open_relay(fleet, credentials, *split_address(where)))
                        print("relay: uses the certificates that it has now", flush=True)
                except PeermaskError as error:
                    print(f"peermask: {error}", file=sys.stderr, flush=True)
        except OSError as error:
            raise NotYetError(f"cannot listen on {where}: {error.strerror or error}") from None
    return interrupt.exit_code
