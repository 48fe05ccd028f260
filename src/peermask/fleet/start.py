"""Runs one agent of a fleet: checks its files, opens the network, plays its rounds, and closes everything."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from peermask.compute.device import pick_device
from peermask.errors import NodeError
from peermask.files import hold_lock
from peermask.fleet.agent import NodeAgent
from peermask.fleet.environment import SYSTEM_TIME, Line, TimeSource
from peermask.fleet.fleet import Fleet, certificates_of, load_fleet
from peermask.fleet.roster import build_member
from peermask.fleet.status import AgentObserver
from peermask.run.execution import Status
from peermask.store.folder import RunFolder

if TYPE_CHECKING:
    from peermask.fleet.credentials import Credentials
    from peermask.fleet.responder import Responder
    from peermask.fleet.roster import Verify
    from peermask.fleet.roster_gossip import RosterGossip
    from peermask.fleet.status import StatusMonitor
    from peermask.fleet.watch import Watch
    from peermask.fleet.zenoh_transport import ZenohTransport


OVERHEAD_BYTES = 2**20  # bytes for everything in a message but its values
Address = tuple[str, int]


@dataclass(frozen=True)
class NodeResult:
    status: Status
    out: Path
    absent: dict[int, list[int]]  # neighbour -> rounds in which it was missing


def run_node(
    path: Path,
    agent: int,
    observer: AgentObserver,
    *,
    out: Path | None = None,
    insecure: bool = False,
    device: str = "cpu",
    should_stop: Callable[[], bool] = lambda: False,
    metrics: Address | None = None,
    stalled_after: float | None = None,
    time: TimeSource = SYSTEM_TIME,
) -> NodeResult:
    """Run agent `agent` of the fleet in file `path`; restarted, it resumes from its folder.

    `metrics`: where to serve metrics and health; the agent is unhealthy if no round ended for `stalled_after` seconds.
    """
    # zenoh and cryptography are optional dependencies; reading a fleet file does not need them
    from peermask.fleet.environment import ReconnectingTransport
    from peermask.fleet.roster_gossip import RosterGossip
    from peermask.fleet.status import StatusMonitor
    from peermask.fleet.watch import Watch

    fleet = load_fleet(path)
    out = out if out is not None else agent_out(default_out(fleet), agent)
    where = pick_device(device)
    roster_file = out / "roster"
    fleet, credentials, verify = identify(path, fleet, agent, roster_file, observer, insecure=insecure)
    watch: Watch | None = None

    def stopping() -> bool:
        return should_stop() or (watch is not None and watch.is_over)

    def ends() -> datetime | None:
        return None if watch is None or watch.valid is None else watch.valid[1]

    monitor = StatusMonitor(observer, fleet, agent, ends, stalled_after, time)
    busy = f"agent {agent} is being run in {out} by another process; stop that one first, or wait for its end"
    # The lock is next to the folder, which does not exist at first.
    with ExitStack() as leaving:
        if metrics is not None:
            from peermask.fleet.metrics import AgentMetrics, serve_metrics

            leaving.enter_context(serve_metrics(*metrics, AgentMetrics(monitor), monitor.health, monitor.say))
        experiment = build_member(fleet, agent)
        leaving.enter_context(hold_lock(out.parent / f".{out.name}.lock", NodeError(busy)))
        node = NodeAgent(fleet, experiment, agent, out, monitor, stopping, where, time)
        node.restore()
        monitor.follow(node.responder, out)
        if RunFolder(out).result.is_file():
            observer.say(f"this run is finished; its result is in {out}")
            return NodeResult("finished", out, node.journal.absent_rounds())

        def session(fleet: Fleet, credentials: Credentials | None) -> AbstractContextManager[ZenohTransport]:
            # The most that an honest neighbour can send: a few float32 per parameter.
            largest = 16 * experiment.network.layout.total + OVERHEAD_BYTES
            return open_session(fleet, agent, credentials, largest, node.responder, monitor, rosters)

        rosters = RosterGossip(fleet, verify, node.responder.refusals, time)
        monitor.latest = lambda: rosters.fleet
        with ReconnectingTransport(time) as transport:
            watch = Watch(
                path, agent, credentials, rosters, node.responder, transport, session, node.adopt, roster_file, time
            )
            with watch:
                status = node.run(transport)
        if status == "interrupted":
            check_may_go_on(watch, agent, out)
        return NodeResult(status, out, node.journal.absent_rounds())


def check_may_go_on(watch: Watch, agent: int, out: Path) -> None:
    """Raise a NodeError if the agent was stopped since it has left its fleet, or its certificate has expired."""
    if watch.left:
        serial = watch.fleet.serial
        raise NodeError(f"agent {agent} has left this fleet permanently (roster {serial}); its files are in {out}")
    if watch.ended:
        renew = f"run `peermask fleet renew FLEET {agent}`, and start it again"
        raise NodeError(f"the certificate of agent {agent} has expired; its state is saved: {renew}")


def identify(
    path: Path, fleet: Fleet, agent: int, roster_file: Path, observer: AgentObserver, *, insecure: bool
) -> tuple[Fleet, Credentials | None, Verify | None]:
    """The fleet by the latest roster known here, the agent's certificates, and how rosters are verified."""
    from peermask.fleet.authority import install_authorities, verifier
    from peermask.fleet.credentials import Credentials, check_credentials
    from peermask.fleet.roster_gossip import latest, was_used

    address = fleet.member(agent).address
    if insecure:
        text = f"INSECURE: anyone who can connect to {address} can read, forge and stop this run; use certificates"
        observer.say(Line(text, "insecure", "warning"))
        return fleet, None, None
    folder = certificates_of(path, fleet)
    ca = Credentials.of(folder, agent).ca
    fleet = latest(fleet, verifier(ca, agent), roster_file, observer.say)
    if not was_used(fleet, roster_file):
        install_authorities(ca, fleet.authorities)
    return fleet, check_credentials(fleet, folder, agent), verifier(ca, agent)


@contextmanager
def open_session(
    fleet: Fleet,
    agent: int,
    credentials: Credentials | None,
    largest: int,
    responder: Responder,
    monitor: StatusMonitor,
    rosters: RosterGossip,
) -> Iterator[ZenohTransport]:
    """The network of one agent by a roster: its links, through a relay if necessary, and a server for operators."""
    from peermask.fleet.operator import OperatorServer
    from peermask.fleet.relay_client import open_relay_client
    from peermask.fleet.sessions import Sessions, session_settings
    from peermask.fleet.zenoh_transport import open_zenoh

    me, neighbours = fleet.member(agent), fleet.neighbours(agent)
    wanted = neighbours if me.relayed else ()  # a relayed agent dials one that is not directly
    inside = (me.listen or me.address) if me.relayed else None
    sessions = Sessions(me.name, {j: fleet.member(j).name for j in neighbours}, monitor.say, monitor.time)
    answers = {
        "status": lambda *_: json.dumps(asdict(monitor.status())).encode(),
        "roster": lambda _, body: b"taken" if rosters.accept_signed(body) else b"known already",
    }
    operator_server = (
        None if credentials is None else OperatorServer(credentials, answers, lambda: rosters.fleet.revoked_operators)
    )
    with open_relay_client(fleet, credentials, wanted, inside, monitor.say) as through:
        settings = session_settings(fleet, agent, credentials, largest, through)
        with open_zenoh(settings, agent, responder, sessions, operator_server) as transport:
            gate = transport.gate
            monitor.connections = lambda: None if gate is None else gate.connections
            monitor.connected = transport.connected
            yield transport


def default_out(fleet: Fleet) -> Path:
    """The same at every start of a fleet or of its agents, so that a restart finds their checkpoints."""
    return Path("runs") / f"{fleet.experiment.name}-{fleet.run[:8]}"


def agent_out(out: Path, agent: int) -> Path:
    """Where an agent's folder is within its fleet's."""
    return out / "agents" / f"agent-{agent}"
