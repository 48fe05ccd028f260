"""trace.csv: which message of each neighbour an agent used in each of its rounds; 0 where it had none.

An agent of a fleet writes its own rows, `peermask fleet collect` puts them together, and a simulated run plays them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from peermask.config.experiment import ExperimentConfig
from peermask.config.file import read_config
from peermask.config.sections import SpeedDraw
from peermask.errors import ConfigError, RunError
from peermask.graph.links import Links
from peermask.run.build import Experiment
from peermask.run.memory import check_room
from peermask.run.resume import find_recorded_plugins
from peermask.run.trace import Trace, leave_out, round_lengths, synchronous_trace, trace_of_speeds
from peermask.store.checked import read_manifest
from peermask.store.folder import RunFolder
from peermask.store.table import append_rows, read_rows
from peermask.streams import stream

TRACE = ("round", "agent", "neighbour", "heard")


def trace_for(experiment: Experiment, folder: RunFolder) -> Trace:
    """The trace that a run plays: the one it began with, a fleet's, or what follows from speeds and deaths."""
    config, links = experiment.config, experiment.mixing.links
    options = config.asynchronous
    check_room(4 * config.rounds * len(links.senders), "a trace of all rounds and links takes", "use fewer of either")
    if options is None:
        trace = synchronous_trace(links, config.rounds)
    elif options.trace is None:
        lengths = round_lengths(speeds_of(experiment), config.rounds, options.jitter, config.seed)
        trace, _ = trace_of_speeds(links, lengths, options.latency, options.grace)
    elif folder.trace.is_file():  # it uses the rows it began with, even if the original file has changed
        trace = read_trace(folder.trace, links, config.rounds)
    else:
        trace = read_trace(Path(options.trace), links, config.rounds)
        write_trace(folder.trace, trace)
    return leave_out(trace, absent_rounds(config))


def absent_rounds(config: ExperimentConfig) -> dict[int, range]:
    """The rounds that each dead agent does not play."""
    if (deaths := config.deaths) is None:
        return {}
    dead = deaths.agents or stream(config.seed, "deaths").permutation(config.agents)[: deaths.count].tolist()
    ends = [deaths.back or 0] * deaths.returning + [config.rounds + 1] * (len(dead) - deaths.returning)
    return {agent: range(deaths.after + 1, end) for agent, end in zip(dead, ends, strict=True)}


def replay_config(run: Path) -> ExperimentConfig:
    """The config that replays an asynchronous fleet whose run was collected into a folder."""
    folder = RunFolder(run)
    folder.check_run()
    find_recorded_plugins(run, quiet=True)  # plug-ins that its config names
    config = read_config(folder.config)
    if config.asynchronous is None:
        raise RunError(f"{run} is not asynchronous; run its config again instead")
    if not folder.trace.is_file():
        raise RunError(f"{run} has no trace.csv: only a fleet records one; run the config again instead")
    if roster := read_manifest(folder.manifest).get("roster"):
        raise RunError(
            f"{run}: agents or links changed while this fleet ran (roster {roster['serial']}), so it cannot be "
            "replayed: a config has one graph"
        )
    options = config.asynchronous.model_copy(update={"trace": str(folder.trace.resolve())})
    return config.model_copy(update={"asynchronous": options})


def speeds_of(experiment: Experiment) -> tuple[float, ...]:
    """The speed of every agent."""
    config = experiment.config
    speeds = None if config.asynchronous is None else config.asynchronous.speeds
    if isinstance(speeds, SpeedDraw):
        drawn = [
            int(stream(config.seed, "speed", agent).uniform(1)[0] * len(speeds.choices))
            for agent in range(config.agents)
        ]
        return tuple(speeds.choices[place] for place in drawn)
    return speeds or (1.0,) * config.agents


def read_trace(path: Path, links: Links, rounds: int) -> Trace:
    """Read and check one: every agent has a row for each of its rounds and neighbours, and all can be played."""
    if not path.is_file():
        raise ConfigError(f"trace {path} does not exist; asynchronous.trace names the trace.csv of a collected fleet")
    ends = zip(links.receivers.tolist(), links.senders.tolist(), strict=True)
    places = {end: place for place, end in enumerate(ends)}
    heard = np.full((rounds, len(links.senders)), -1, np.int32)  # [R, E]
    for line, row in enumerate(read_rows(path), 2):
        number, agent, neighbour, used = (int(row[column]) for column in TRACE)
        place = places.get((agent, neighbour))
        if place is None:
            raise RunError(f"{path} line {line}: agent {agent} has no link to agent {neighbour} in this experiment")
        if not 1 <= number <= rounds or used > rounds:
            beyond = f"round {number}" if not 1 <= number <= rounds else f"round {used} of agent {neighbour}"
            raise RunError(f"{path} line {line}: {beyond} does not exist; the experiment has rounds 1 to {rounds}")
        if heard[number - 1, place] >= 0:
            raise RunError(f"{path} line {line}: agent {agent} has round {number} and agent {neighbour} twice")
        heard[number - 1, place] = used
    missing = np.argwhere(heard < 0)
    if len(missing):
        number, place = missing[0].tolist()
        raise RunError(
            f"{path} has no row of agent {links.receivers[place]} in round {number + 1} and its neighbour "
            f"{links.senders[place]}; copy it from its device again, or collect the fleet again"
        )
    trace = Trace(links, heard)
    try:
        trace.order  # noqa: B018 (which finds what is wrong)
    except RunError as error:
        raise RunError(f"{path}: {error}") from None
    return trace


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace in the order of rounds and agents."""
    ends = list(zip(trace.links.receivers.tolist(), trace.links.senders.tolist(), strict=True))
    path.unlink(missing_ok=True)
    append_rows(
        path,
        TRACE,
        (
            [number, *end, used]
            for number, row in enumerate(trace.heard.tolist(), 1)
            for end, used in zip(ends, row, strict=True)
        ),
    )
