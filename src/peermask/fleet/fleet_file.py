"""The fleet file: one TOML file, the same on every device, with experiment, agents, addresses and links.

run = "5f3a9c0d12e47b86"        id of this deployment; peers of another one are refused
missing = "last"                what to do about a neighbour that does not answer
links = [[0, 1], [1, 2], ...]   the graph of the experiment as a list
[[agents]]                      one table per agent: its number and address
[[imports]]                     one table per plug-in: its file and SHA-256, or its module and version
[experiment]                    an ordinary experiment config

Agents and links may change while the fleet runs (`fleet/roster.py`): the file then has a serial number and a signature.
"""

from __future__ import annotations

import secrets
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from peermask.config.choice import first_problem
from peermask.config.experiment import ExperimentConfig
from peermask.errors import ConfigError, NodeError
from peermask.files import write_atomically
from peermask.fleet.fleet import Fleet, FleetMember, Missing, check, join_address, links_of
from peermask.plugins import Plugin, find_plugins, records

HEADER = """\
# A peermask fleet: give this same file to every device, each with its own certificate and key.
# missing: "wait" for a neighbour that does not answer, count its "last" mask by age, or "skip" it.
"""


def new_fleet(
    config: ExperimentConfig, hosts: Sequence[str] = ("127.0.0.1",), port: int = 7450, missing: Missing = "last"
) -> Fleet:
    """A fleet for an experiment: one host for all agents, or one for each; agents of one host get consecutive ports."""
    if len(hosts) not in (1, config.agents):
        raise NodeError(f"{len(hosts)} hosts for {config.agents} agents; give one host, or one per agent")
    every = list(hosts) * config.agents if len(hosts) == 1 else list(hosts)
    seen: Counter[str] = Counter()
    members = []
    for agent, host in enumerate(every):
        members.append(FleetMember(agent=agent, address=join_address(host, port + seen[host])))
        seen[host] += 1
    fleet = Fleet(
        run=secrets.token_hex(8),
        missing=missing,
        links=links_of(config),
        agents=tuple(members),
        imports=tuple(records(config.imports)),
        experiment=config.model_copy(update={"compare": ()}),
    )
    check(fleet)
    return fleet


def save_fleet(path: Path, fleet: Fleet) -> None:
    if path.exists():
        raise NodeError(f"{path} exists; give another name, or delete it")
    if not path.parent.is_dir():
        raise NodeError(f"folder {path.parent} does not exist")
    write_fleet(path, fleet)


def write_fleet(path: Path, fleet: Fleet) -> None:
    """Write a fleet file, even if it exists."""
    values = fleet.model_dump(mode="json", exclude_none=True)
    values["experiment"].pop("imports", None)  # they are paths on this machine
    for key in ("imports", "left", "serial", "revoked_operators", "authorities"):
        if not values[key]:
            del values[key]
    for member in values["agents"]:
        for word in ("relayed", "revoked"):
            if not member[word]:
                del member[word]
    write_atomically(path, (HEADER + _links_table(values.pop("links")) + tomli_w.dumps(values)).encode())


def _links_table(links: list[list[int]]) -> str:
    """Several links on a line; the TOML writer would write four lines for each."""
    lines = [", ".join(map(str, links[start : start + 10])) for start in range(0, len(links), 10)]
    return "links = [\n" + "".join(f"    {line},\n" for line in lines) + "]\n"


def load_fleet(path: Path) -> Fleet:
    """Read and check a fleet file; every mistake is a one-line error.

    Its plug-ins are imported only if the user of this machine named them, and their hashes are the same.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        if "experiment" not in values:
            raise NodeError(f"is not a fleet file; make one of an experiment with `peermask fleet new FLEET {path}`")
        plugins = find_plugins(_imports(values), str(path), exact=True)
        fleet = Fleet.model_validate(values)
        check(fleet)
    except FileNotFoundError:
        raise NodeError(f"fleet file {path} does not exist; write one with `peermask fleet new {path}`") from None
    except OSError as error:
        raise NodeError(f"fleet file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise NodeError(f"fleet file {path} is not valid TOML: {error}") from None
    except ValidationError as error:
        raise NodeError(f"{path}: {first_problem(error, Fleet)}") from None
    except (NodeError, ConfigError) as error:
        raise NodeError(f"{path}: {error}") from None
    return fleet.model_copy(update={"experiment": fleet.experiment.model_copy(update={"imports": plugins or None})})


def certificates_of(path: Path, fleet: Fleet) -> Path:
    """The certificate folder, relative to the fleet file."""
    return path.parent / fleet.certificates


def _imports(values: dict[str, Any]) -> list[Plugin]:
    """The plug-ins of a fleet; checked before the rest, which uses what they register."""
    tables, experiment = values.get("imports", []), values["experiment"]
    if isinstance(experiment, dict) and "imports" in experiment:
        raise NodeError(
            "experiment.imports: a fleet lists plug-ins with their hashes; write it with `peermask fleet new --import`"
        )
    if not isinstance(tables, list):
        raise NodeError(
            f"imports = {tables!r}: must be tables [[imports]], as `peermask fleet new --import` writes them"
        )
    try:
        return [Plugin.model_validate(one) for one in tables]
    except ValidationError as error:
        raise first_problem(error, Plugin, "imports") from None
