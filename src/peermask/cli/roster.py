"""`peermask fleet add`, `remove`, `link`, `unlink`, `revoke`, `renew`, `sign`: a fleet that changes while it runs.

All but `renew` write the next roster into the fleet file and sign it; the agents take it from there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peermask.cli.imports import Import, bring
from peermask.cli.node import FleetFile

if TYPE_CHECKING:
    from peermask.node.fleet import Fleet

Numbers = Annotated[list[int], typer.Argument(metavar="AGENT...", help="Numbers of agents.")]
Days = Annotated[int, typer.Option(min=1, max=3650, help="How long the new certificates are valid.")]


def add(
    fleet: FleetFile,
    host: Annotated[str, typer.Option(help="Name or address of the new device.")],
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Its port; the first that no agent of that host has.")
    ] = None,
    link: Annotated[
        list[int] | None, typer.Option(help="A neighbour, any number of times; else the two with the fewest.")
    ] = None,
    retention: Annotated[float | None, typer.Option(min=1e-6, max=1, help="Share of the weights it keeps.")] = None,
    days: Days = 365,
    import_: Import = None,
) -> None:
    """Add an agent to a fleet, which may be running."""
    from peermask.node.roster import added

    held = _read(fleet, import_)
    made = added(held, host, port, link or (), retention)
    new = made.agents[-1]
    folder = _publish(fleet, made, days)
    others = ", ".join(map(str, made.neighbours(new.agent)))
    print(f"agent {new.agent} at {new.address}, linked to {others}, retention {new.retention:g}")
    if len(made.neighbours(new.agent)) == 1:
        print(f"it has one neighbour, and so believes agent {others} which round the fleet is in")
    name = f"{folder / f'agent-{new.agent}'}"
    print(f"give its device {fleet}, {folder / 'ca.pem'}, {name}.pem and {name}.key; {_hand_on(fleet)}")


def remove(fleet: FleetFile, agents: Numbers, import_: Import = None) -> None:
    """Take agents out of a fleet for good: nobody waits for them, answers them or counts their masks any more."""
    from peermask.node.roster import removed

    held = _read(fleet, import_)
    _change(fleet, held, removed(held, agents))


def link(fleet: FleetFile, agent: int, other: int, import_: Import = None) -> None:
    """Let two agents hear each other."""
    from peermask.node.roster import linked

    held = _read(fleet, import_)
    _change(fleet, held, linked(held, agent, other))


def unlink(fleet: FleetFile, agent: int, other: int, import_: Import = None) -> None:
    """Cut the link between two agents."""
    from peermask.node.roster import unlinked

    held = _read(fleet, import_)
    _change(fleet, held, unlinked(held, agent, other))


def revoke(fleet: FleetFile, agents: Numbers, days: Days = 365, import_: Import = None) -> None:
    """Take back the certificates of agents, and make new ones."""
    from peermask.node.roster import revoked

    held = _read(fleet, import_)
    folder = _publish(fleet, revoked(held, agents), days, renew=tuple(agents))
    _say_hand_on(fleet)
    for agent in agents:
        print(f"agent {agent} goes on once its device has its new {folder / f'agent-{agent}'}.pem and .key")


def renew(
    fleet: FleetFile,
    agents: Annotated[
        list[int] | None, typer.Argument(metavar="[AGENT...]", help="Numbers of agents; all if left out.")
    ] = None,
    days: Days = 365,
    import_: Import = None,
) -> None:
    """Make the certificates of agents again; a running agent takes its new one without a restart."""
    from peermask.node.certificates import make_certificates
    from peermask.node.start import certificates_of

    held = _read(fleet, import_)
    chosen = tuple(agents or (member.agent for member in held.agents))
    folder = certificates_of(fleet, held)
    make_certificates(held, folder, days, chosen)
    print(f"{folder}: {len(chosen)} certificates made again; copy each with its key to its device")


def sign(fleet: FleetFile, import_: Import = None) -> None:
    """Number and sign agents, addresses and links that were changed in the file by hand."""
    from peermask.node.roster import changed

    held = _read(fleet, import_)
    _change(fleet, held, changed(held))


def _read(path: Path, import_: list[str] | None) -> Fleet:
    from peermask.node.fleet import load_fleet

    bring(import_)
    return load_fleet(path)


def _publish(path: Path, made: Fleet, days: int = 365, renew: tuple[int, ...] = ()) -> Path:
    """Sign and write a roster, and make the certificates it needs."""
    from peermask.node.certificates import make_certificates
    from peermask.node.certificates import sign as signature_of
    from peermask.node.fleet import write_fleet
    from peermask.node.roster import encoded
    from peermask.node.start import certificates_of

    folder = certificates_of(path, made)
    make_certificates(made, folder, days, renew)
    write_fleet(path, made.model_copy(update={"signature": signature_of(folder, encoded(made))}))
    print(f"{path}: roster {made.serial}, {len(made.agents)} agents, {len(made.links)} links")
    return folder


def _change(path: Path, before: Fleet, made: Fleet) -> None:
    from peermask.node.roster import alone

    _publish(path, made)
    for agent in sorted(set(alone(made)) - set(alone(before))):
        print(f"warning: agent {agent} has no neighbour any more and learns alone; see `peermask fleet link`")
    _say_hand_on(path)


def _hand_on(path: Path) -> str:
    return f"copy {path} to any one running agent's device: the others hear of it there"


def _say_hand_on(path: Path) -> None:
    print(_hand_on(path))


COMMANDS = (add, remove, link, unlink, revoke, renew, sign)
