"""Starts one agent of a fleet: checks its files, opens the network, plays, and leaves cleanly."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from peermask.engine.device import pick_device
from peermask.errors import NodeError
from peermask.experiment.execution import Status
from peermask.experiment.folder import RunFolder
from peermask.files import held
from peermask.node.agent import NodeAgent, Observer
from peermask.node.fleet import Fleet, load_fleet
from peermask.node.members import build_member

SLACK = 2**20  # bytes beside the values of a message


@dataclass(frozen=True)
class NodeResult:
    status: Status
    out: Path
    absent: dict[int, list[int]]  # neighbour -> rounds it was missed in


def run_node(
    path: Path,
    agent: int,
    observer: Observer,
    *,
    out: Path | None = None,
    insecure: bool = False,
    device: str = "cpu",
    should_stop: Callable[[], bool] = lambda: False,
) -> NodeResult:
    """Run agent `agent` of the fleet in file `path`; started again, it goes on where its folder says."""
    # zenoh and cryptography are an extra, which reading a fleet file does not need
    from peermask.node.certificates import Credentials, check_credentials, verifier
    from peermask.node.reopening import Reopening
    from peermask.node.rosters import Rosters, latest
    from peermask.node.sessions import Sessions
    from peermask.node.watch import Watch
    from peermask.node.zenoh_settings import session_settings
    from peermask.node.zenoh_transport import ZenohTransport, open_zenoh

    fleet = load_fleet(path)
    out = out if out is not None else agent_out(default_out(fleet), agent)
    where = pick_device(device)
    folder, kept = certificates_of(path, fleet), out / "roster"
    credentials = verify = None
    if insecure:
        address = fleet.member(agent).address
        observer.say(f"INSECURE: whoever reaches {address} can read, forge and stop this run; use certificates")
    else:
        fleet.member(agent)
        verify = verifier(Credentials.of(folder, agent).ca, agent)
        fleet = latest(fleet, verify, kept, observer.say)
        credentials = check_credentials(fleet, folder, agent)

    watch: Watch | None = None

    def stopping() -> bool:
        return should_stop() or (watch is not None and watch.is_over)

    experiment = build_member(fleet, agent)
    busy = f"agent {agent} is being run in {out} by another process; stop that one first, or wait for its end"
    with held(out.parent / f".{out.name}.lock", NodeError(busy)):  # beside the folder, which begins as nothing
        node = NodeAgent(fleet, experiment, agent, out, observer, stopping, where)
        node.restore()
        if RunFolder(out).result.is_file():
            observer.say(f"this run is finished; its result is in {out}")
            return NodeResult("finished", out, node.journal.absent_rounds())

        def session(fleet: Fleet, credentials: Credentials | None) -> AbstractContextManager[ZenohTransport]:
            # All that an honest neighbour can send: a few float32 per parameter.
            settings = session_settings(fleet, agent, credentials, 16 * experiment.network.layout.total + SLACK)
            names = {j: fleet.member(j).name for j in fleet.neighbours(agent)}
            sessions = Sessions(fleet.member(agent).name, names, observer.say)
            return open_zenoh(settings, agent, node.responder, sessions)

        rosters = Rosters(fleet, verify, node.responder.refusals)
        with Reopening() as transport:
            watch = Watch(path, agent, credentials, rosters, node.responder, transport, session, node.adopt, kept)
            with watch:
                status = node.run(transport)
        if status == "interrupted" and watch.left:
            raise NodeError(
                f"agent {agent} has left this fleet for good (roster {rosters.fleet.serial}); all is in {out}"
            )
        if status == "interrupted" and watch.ended:
            raise NodeError(
                f"the certificate of agent {agent} has ended; all is saved: run `peermask fleet renew FLEET {agent}`, "
                "and start this one again"
            )
        return NodeResult(status, out, node.journal.absent_rounds())


def certificates_of(path: Path, fleet: Fleet) -> Path:
    """The certificate folder, which is named relative to the fleet file."""
    return path.parent / fleet.certificates


def default_out(fleet: Fleet) -> Path:
    """The same for every start of a fleet or of its agents, so that a restart finds their checkpoints."""
    return Path("runs") / f"{fleet.experiment.name}-{fleet.run[:8]}"


def agent_out(out: Path, agent: int) -> Path:
    """Where an agent's folder is within its fleet's."""
    return out / "agents" / f"agent-{agent}"
