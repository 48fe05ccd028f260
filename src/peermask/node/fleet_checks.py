"""Checks of a fleet that concern several keys together."""

from __future__ import annotations

from collections import Counter

from peermask.algorithms import algorithms
from peermask.errors import NodeError
from peermask.masks.budget import retentions
from peermask.node.address import split_address
from peermask.node.fleet import GRAPHS, Fleet, links_of


def check(fleet: Fleet) -> None:
    """Raise a NodeError for a fleet that cannot run."""
    config = fleet.experiment
    _check_numbers(fleet)
    seen: dict[str, int] = {}
    for member in fleet.agents:
        split_address(member.address)
        if member.listen is not None:
            split_address(member.listen)
        if member.address in seen:
            raise NodeError(f"agents {seen[member.address]} and {member.agent} have the same address {member.address}")
        seen[member.address] = member.agent
    if fleet.relay is not None:
        split_address(fleet.relay)
    elif any(member.relayed for member in fleet.agents):
        relayed = next(member.agent for member in fleet.agents if member.relayed)
        raise NodeError(f'agent {relayed} is relayed, and there is no relay; add `relay = "host:port"`')
    retentions(config.retention, config.agents, config.seed)
    if config.liars is not None:
        raise NodeError("experiment.liars: only the simulator supports liars; delete it")
    if config.schedule is not None and config.rounds > GRAPHS:
        raise NodeError(f"experiment.schedule: a fleet supports at most {GRAPHS:,} rounds of it, not {config.rounds:,}")
    if config.compare:
        raise NodeError("experiment.compare: a fleet runs one algorithm; delete it and write one fleet file for each")
    if config.stop.patience:
        raise NodeError("experiment.stop.patience: no agent knows the mean accuracy of all agents; set it to 0")
    name = config.algorithm.name
    if name in algorithms and algorithms[name].make.needs_every_message and fleet.missing != "wait":
        raise NodeError(f"missing = {fleet.missing!r}: {name} needs every message; set it to 'wait'")
    if config.asynchronous is not None and fleet.missing == "wait":
        raise NodeError("missing = 'wait': agents of an asynchronous run do not wait; set it to 'last'")
    if config.asynchronous is not None and config.asynchronous.trace is not None:
        raise NodeError("experiment.asynchronous.trace: only the simulator replays traces; delete it")
    check_links(fleet)


def _check_numbers(fleet: Fleet) -> None:
    first, numbers = fleet.experiment.agents, [member.agent for member in fleet.agents]
    if not fleet.serial and (numbers != list(range(first)) or fleet.left):
        raise NodeError(
            f"agents are numbered {numbers}; experiment.agents = {first} needs 0 to {first - 1} "
            "(`peermask fleet add` and `fleet remove` change that)"
        )
    every = [*numbers, *fleet.left]
    twice = next((number for number, count in Counter(every).items() if count > 1), None)
    if twice is not None:
        raise NodeError(f"agent {twice} is there more than once, or has left; numbers are used only once")
    lost = sorted(set(range(first)) - set(every))
    if lost or not numbers:
        raise NodeError(f"agents: {lost or 'all'} are missing; `peermask fleet remove` records agents that have left")
    for member in fleet.agents:
        if (member.retention is not None) != (member.agent >= first):
            must = "must be given" if member.agent >= first else "is in the experiment; delete it"
            raise NodeError(f"agents: retention of agent {member.agent} {must}")


def _check_changed_links(fleet: Fleet) -> None:
    known, seen = {member.agent for member in fleet.agents}, set()
    for i, j in fleet.links:
        if i == j:
            raise NodeError(f"links: agent {i} is linked to itself")
        for agent in (i, j):
            if agent not in known:
                raise NodeError(f"links: {i} - {j} is a link of agent {agent}, which this fleet does not have")
        if (min(i, j), max(i, j)) in seen:
            raise NodeError(f"links: {i} - {j} appears twice")
        seen.add((min(i, j), max(i, j)))


def check_links(fleet: Fleet) -> None:
    """Links are in the file for people and firewalls; they are the experiment's graph until a roster changes them."""
    if fleet.serial:
        _check_changed_links(fleet)
        return
    wanted, given = set(links_of(fleet.experiment)), {(min(link), max(link)) for link in fleet.links}
    for odd, problem in ((given - wanted, "is not"), (wanted - given, "is missing, but it is")):
        if odd:
            i, j = min(odd)
            raise NodeError(
                f"links: {i} - {j} {problem} a link of the experiment ({fleet.experiment.graph.name} graph, "
                f"{fleet.experiment.algorithm.name}); change experiment.graph and write the file again"
            )
