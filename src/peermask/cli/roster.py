"""`peermask fleet add`, `remove`, `link`, `unlink`, `revoke`, `renew`, `sign`: a fleet that changes while it runs.

All but `renew` write the next roster into the fleet file and sign it; the agents take it from there.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peermask.cli.options import FleetFile, Import, open_fleet, read_fleet
from peermask.errors import NodeError

if TYPE_CHECKING:
    from peermask.fleet.fleet import Fleet

Numbers = Annotated[list[int], typer.Argument(metavar="AGENT...", help="Numbers of agents.")]
Days = Annotated[int, typer.Option(min=1, max=3650, help="How long the new certificates are valid.")]


def add(
    path: FleetFile,
    host: Annotated[str, typer.Option(help="Name or address of the new device.")],
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Its port; by default the first free one of that host.")
    ] = None,
    link: Annotated[
        list[int] | None,
        typer.Option(help="A neighbour; may be repeated. Default: the two agents with the fewest links."),
    ] = None,
    retention: Annotated[float | None, typer.Option(min=1e-6, max=1, help="Share of weights that it keeps.")] = None,
    relayed: Annotated[
        bool, typer.Option("--relayed", help="It cannot be dialled; neighbours reach it through the fleet's relay.")
    ] = False,
    request: Annotated[
        bool, typer.Option("--request", help="Make no key; its device makes one with `peermask fleet request`.")
    ] = False,
    days: Days = 365,
    import_: Import = None,
) -> None:
    """Add an agent to a fleet, which may be running."""
    from peermask.fleet.roster import add_agent

    fleet = read_fleet(path, import_)
    made = add_agent(fleet, host, port, link or (), retention, relayed=relayed)
    new = made.agents[-1]
    folder = _publish(path, made, days, agents=() if request else (new.agent,))
    others = ", ".join(map(str, made.neighbours(new.agent)))
    print(f"agent {new.agent} at {new.address}, linked to {others}, retention {new.retention:g}")
    if len(made.neighbours(new.agent)) == 1:
        print(f"it has one neighbour, agent {others}, and relies on it for the fleet's round")
    name = f"{folder / f'agent-{new.agent}'}"
    files = "" if request else f", {name}.pem and {name}.key"
    print(f"give its device {path}, {folder / 'ca.pem'}{files}; {_hand_on(path)}")
    if request:
        print(f"then, on the device: peermask fleet request {path.name} {new.agent}")


def remove(path: FleetFile, agents: Numbers, import_: Import = None) -> None:
    """Remove agents from a fleet permanently.

    Other agents no longer wait for them, answer them or use their masks.
    """
    from peermask.fleet.roster import remove_agents

    fleet = read_fleet(path, import_)
    _change(path, fleet, remove_agents(fleet, agents))


def link(path: FleetFile, agent: int, other: int, import_: Import = None) -> None:
    """Link two agents."""
    from peermask.fleet.roster import link_agents

    fleet = read_fleet(path, import_)
    _change(path, fleet, link_agents(fleet, agent, other))


def unlink(path: FleetFile, agent: int, other: int, import_: Import = None) -> None:
    """Remove the link between two agents."""
    from peermask.fleet.roster import unlink_agents

    fleet = read_fleet(path, import_)
    _change(path, fleet, unlink_agents(fleet, agent, other))


def revoke(
    path: FleetFile,
    agents: Annotated[list[int] | None, typer.Argument(metavar="[AGENT...]", help="Numbers of agents.")] = None,
    operator: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="An operator, any number of times; the name cannot be used again."),
    ] = None,
    days: Days = 365,
    import_: Import = None,
) -> None:
    """Revoke the certificates of agents, and make new ones; or those of operators."""
    from peermask.fleet.certificates import is_enrolled
    from peermask.fleet.credentials import operator_files
    from peermask.fleet.roster import revoke_certificates

    (fleet, folder), chosen = open_fleet(path, import_), tuple(agents or ())
    if not chosen and not operator:
        raise NodeError("no agent and no operator is given; name agents by their numbers, operators by --operator NAME")
    enrolled = [agent for agent in chosen if is_enrolled(folder, agent)]
    others = [agent for agent in chosen if agent not in enrolled]
    _publish(path, revoke_certificates(fleet, chosen, operator or ()), days, renew=others)
    print(_hand_on(path))
    for name in operator or ():
        if not operator_files(folder, name).certificate.exists():
            print(f"{folder} has no certificate of operator {name}; if the name is misspelt, revoke the right one too")
    for agent in others:
        print(f"agent {agent} continues once its device has its new {folder / f'agent-{agent}'}.pem and .key")
    for agent in enrolled:
        print(f"agent {agent}: copy {path} to its device, there `peermask fleet request FLEET {agent} --new-key`")


def renew(
    path: FleetFile,
    agents: Annotated[
        list[int] | None, typer.Argument(metavar="[AGENT...]", help="Numbers of agents; all by default.")
    ] = None,
    days: Days = 365,
    import_: Import = None,
) -> None:
    """Renew certificates of agents, which may be running."""
    from peermask.fleet.certificates import is_enrolled, make_certificates

    fleet, folder = open_fleet(path, import_)
    chosen = tuple(agents or (one.agent for one in fleet.agents))
    enrolled = [agent for agent in chosen if is_enrolled(folder, agent)]
    made = make_certificates(fleet, folder, days, chosen, (), renew_relay=not agents)
    print(f"{folder}: {len(made)} certificates renewed; copy each with its key to its device")
    if enrolled:
        print(f"without a key for agent {', '.join(map(str, enrolled))}, whose device has it")


def change_authority(path: Path, import_: list[str] | None, *, retire: bool) -> None:
    """Make a roster with a new authority beside the present one, or without the earlier one."""
    from peermask.fleet.authority import replace_authority, retire_authority
    from peermask.fleet.certificates import newest_authority
    from peermask.fleet.roster import next_roster

    fleet, folder = open_fleet(path, import_)
    lost = not (folder / "ca.key").exists()
    authorities = newest_authority(fleet, folder) if retire else replace_authority(folder, fleet.authorities)
    _publish(path, next_roster(fleet, authorities=authorities))  # signed by both
    if retire:
        retire_authority(folder)
    elif lost:
        print(f"the key of the earlier authority is lost: copy {folder / 'ca.pem'} to every device, then {path}")
    print(_hand_on(path))
    if not retire:
        print(f"once `fleet status` shows roster {fleet.serial + 1} everywhere: peermask fleet renew {path}")


def sign(path: FleetFile, import_: Import = None) -> None:
    """Sign agents and links that were changed in the file by hand."""
    from peermask.fleet.roster import next_roster

    fleet = read_fleet(path, import_)
    _change(path, fleet, next_roster(fleet))


def _publish(
    path: Path, made: Fleet, days: int = 365, renew: Collection[int] = (), agents: Collection[int] = ()
) -> Path:
    """Sign and write a roster, and make certificates of `agents`, and again those of `renew`."""
    from peermask.fleet.authority import sign as signature_of
    from peermask.fleet.certificates import make_certificates
    from peermask.fleet.fleet import certificates_of, write_fleet
    from peermask.fleet.roster import encode_roster

    folder = certificates_of(path, made)
    make_certificates(made, folder, days, renew, agents)
    write_fleet(path, made.model_copy(update={"signature": signature_of(folder, encode_roster(made))}))
    print(f"{path}: roster {made.serial}, {len(made.agents)} agents, {len(made.links)} links")
    return folder


def _change(path: Path, before: Fleet, made: Fleet) -> None:
    from peermask.fleet.roster import agents_without_neighbours

    _publish(path, made)
    for agent in sorted(set(agents_without_neighbours(made)) - set(agents_without_neighbours(before))):
        print(f"warning: agent {agent} has no neighbours left and learns alone; see `peermask fleet link`")
    print(_hand_on(path))


def _hand_on(path: Path) -> str:
    return f"copy {path} to any one running agent's device: the others hear of it there"


COMMANDS = (add, remove, link, unlink, revoke, renew, sign)
