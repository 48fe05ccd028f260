"""`peermask fleet`: file and certificates of a deployment; roster.py changes it, operate.py monitors it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from peermask.cli.node import private_files
from peermask.cli.options import Config, FleetFile, Import, Set, open_fleet, read_fleet
from peermask.cli.roster import COMMANDS, change_authority
from peermask.errors import NodeError

if TYPE_CHECKING:
    from peermask.config.experiment import ExperimentConfig
    from peermask.exports.profile import Kind

Agent = Annotated[int, typer.Argument(metavar="AGENT", help="Number of the agent.")]
Days = Annotated[int, typer.Option(min=1, max=3650, help="How long the certificates are valid.")]

fleet_app = typer.Typer(help="Set up, change and monitor a fleet of devices.", no_args_is_help=True)


@fleet_app.command()
def new(
    path: FleetFile,
    config: Config = None,
    set_: Set = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the device; once for all agents, or once per agent.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=1, max=65_000, help="First port; agents of one host get consecutive ports.")
    ] = 7450,
    missing: Annotated[str, typer.Option(help="What to do about a silent neighbour: wait, last or skip.")] = "last",
    profile: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Set retentions by a file of `peermask profile`; once for all agents, or once per agent.",
        ),
    ] = None,
    import_: Import = None,
) -> None:
    """Write the fleet file: experiment, agents, addresses and links."""
    from peermask.config.file import load_config
    from peermask.fleet.fleet import Missing, new_fleet, save_fleet

    if missing not in get_args(Missing):
        raise NodeError(f"--missing {missing!r} is not one of {', '.join(get_args(Missing))}")
    wanted = load_config(config, set_ or (), import_ or ())
    if profile:
        wanted = wanted.model_copy(update={"retention": retentions_by(profile, wanted)})
    made = new_fleet(wanted, host or ["127.0.0.1"], port, cast(Missing, missing))
    save_fleet(path, made)
    for choice in wanted.compare:
        print(f"{choice.name} is ignored: a fleet runs one algorithm, {made.experiment.algorithm.name}")
    print(f"{path}: {len(made.agents)} agents, {len(made.links)} links, {made.experiment.algorithm.name}")
    print(f"next: peermask fleet certs {path}")


def retentions_by(profiles: list[Path], config: ExperimentConfig) -> tuple[float, ...]:
    """The retention that each device can run, by its profile."""
    from peermask.exports.profile import retention_for

    if len(profiles) not in (1, config.agents):
        raise NodeError(f"{len(profiles)} profiles for {config.agents} agents; give one for all, or one per agent")
    kind: Kind = "filters" if config.mask.filter_threshold else "unstructured"
    found = [retention_for(path, config.model.table(), kind) for path in profiles]
    return tuple(found * config.agents if len(found) == 1 else found)


@fleet_app.command()
def certs(
    path: FleetFile,
    days: Days = 365,
    requests: Annotated[
        bool,
        typer.Option("--requests", help="Make no keys of agents: their devices do, with `peermask fleet request`."),
    ] = False,
    new_authority: Annotated[
        bool, typer.Option("--new-authority", help="Make a new authority; agents trust both until one is retired.")
    ] = False,
    retire_authority: Annotated[
        bool, typer.Option("--retire-authority", help="End the trust in the earlier of two authorities.")
    ] = False,
    import_: Import = None,
) -> None:
    """Make an authority and certificates; existing ones stay. Or replace the authority of a fleet that runs."""
    from peermask.fleet.authority import sign
    from peermask.fleet.certificates import make_certificates
    from peermask.fleet.fleet import write_fleet
    from peermask.fleet.roster import encode_roster

    if new_authority or retire_authority:
        if requests or (new_authority and retire_authority):
            raise NodeError("--new-authority, --retire-authority and --requests exclude each other; give one of them")
        change_authority(path, import_, retire=retire_authority)
        return
    fleet, folder = open_fleet(path, import_)
    made = make_certificates(fleet, folder, days, agents=() if requests else None)
    if fleet.serial:  # the authority may be a new one
        write_fleet(path, fleet.model_copy(update={"signature": sign(folder, encode_roster(fleet))}))
    print(f"{folder}: {len(made)} certificates made; do not copy {folder / 'ca.key'} to devices")


@fleet_app.command()
def request(
    path: FleetFile,
    agent: Agent,
    new_key: Annotated[bool, typer.Option("--new-key", help="Replace the key that this device has.")] = False,
    import_: Import = None,
) -> None:
    """On a device: make its key, and a request for a certificate."""
    from peermask.fleet.certificates import make_request

    request, fingerprint = make_request(*open_fleet(path, import_), agent, new_key=new_key)
    print(f"{request}: send it to the person who has ca.key; the key stays here")
    print(f"fingerprint: {fingerprint}")


@fleet_app.command()
def enrol(
    path: FleetFile,
    agent: Agent,
    request: Annotated[Path, typer.Argument(help="The file that `fleet request` wrote on the agent's device.")],
    fingerprint: Annotated[str | None, typer.Option(help="What `fleet request` showed on the device.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="The agent's device has a new key.")] = False,
    days: Days = 365,
    import_: Import = None,
) -> None:
    """Sign a device's request for the certificate of an agent."""
    from peermask.fleet.certificates import enrol as sign_request

    fleet, folder = open_fleet(path, import_)
    made = sign_request(fleet, folder, agent, request, fingerprint, days, replace=replace)
    print(f"{made}: copy it and {folder / 'ca.pem'} to the device of agent {agent}")


@fleet_app.command()
def summary(
    path: FleetFile,
    agent: Annotated[int, typer.Option(min=0, help="The agent of this device.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    import_: Import = None,
) -> None:
    """On a device: write count, mean and variance of its samples."""
    from peermask.fleet.statistics import summary_of, write_summary

    made = summary_of(read_fleet(path, import_), agent)
    write_summary(out, made)
    print(f"{out}: {made.samples} samples; send it to the person who writes the fleet file")


@fleet_app.command()
def statistics(
    path: FleetFile,
    summaries: Annotated[list[Path], typer.Argument(help="Files that `fleet summary` wrote, of every agent.")],
    partial: Annotated[bool, typer.Option("--partial", help="Continue without the agents that sent none.")] = False,
    far: Annotated[
        float, typer.Option(min=1, help="Reject a mean this many deviations from the median of all agents; inf: never.")
    ] = 10.0,
    import_: Import = None,
) -> None:
    """Combine all summaries, and write the scale to the fleet file."""
    from peermask.fleet.fleet import write_fleet
    from peermask.fleet.statistics import read_summary, with_statistics

    fleet = read_fleet(path, import_)
    found = [read_summary(path) for path in summaries]
    write_fleet(path, with_statistics(fleet, found, partial=partial, far=far))
    samples = sum(each.samples for each in found)
    print(f"{path}: mean and deviation of {samples} samples of {len(found)} agents; copy it to every device")


@fleet_app.command()
def experiment(path: FleetFile, import_: Import = None) -> None:
    """Print the experiment of a fleet as a config file."""
    print(read_fleet(path, import_).experiment.toml(), end="")


@fleet_app.command()
def collect(
    path: FleetFile,
    folders: Annotated[list[Path], typer.Argument(help="The agents' folders, copied here from their devices.")],
    out: Annotated[Path, typer.Option(help="The run folder to make.")],
    partial: Annotated[
        bool,
        typer.Option(
            "--partial", help="Continue without agents whose folder is missing: tables of the others, no models."
        ),
    ] = False,
    import_: Import = None,
) -> None:
    """Combine the folders of all agents into one run."""
    from peermask.fleet.collect import collect_run, has_changed, named
    from peermask.store.folder import RunFolder

    fleet = read_fleet(path, import_)
    if RunFolder(out).is_taken:
        raise NodeError(f"{out} exists; give another --out")
    with private_files():
        missing = collect_run(fleet, folders, out, partial=partial).manifest.get("missing_agents")
    if missing:
        print(f"{named(missing)} missing: an unfinished run, with tables but without models", file=sys.stderr)
    elif has_changed(fleet):
        print(
            "agents have joined or left: a run with tables only; models are in the agents' own folders", file=sys.stderr
        )
    print(out)


for command in COMMANDS:
    fleet_app.command()(command)
