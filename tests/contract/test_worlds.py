"""One experiment in every world ends as left alone: by many workers, resumed, in ranks, as a fleet, played again.

Worlds that do the same operations in the same order have the same hash. Agents of a fleet add real values in the order
in which they hear them, so there only masks, which are counted, are compared by hash. Chunks round otherwise, too: see
`test_every_algorithm.py`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fleet_cases import MemoryFleet, tiny_fleet
from moved_time import MovedTime
from rank_process import RankRun, assert_same

from commands import Small, stop_after
from peermask.algorithms import algorithms
from peermask.config.file import make_config
from peermask.fleet.collect import collect_run
from peermask.run.build import build
from peermask.run.execution import Execution
from peermask.run.result import RunResult
from peermask.run.runner import resume_experiment, run_experiment
from peermask.run.trace import trace_for, write_trace
from peermask.store.folder import RunFolder
from peermask.store.table import read_rows

ALONE = Execution(device="cpu", workers=1)
UNEVEN = {"speeds": [0.2, 1.0, 1.0, 0.7], "weights": [100, 50, 1]}  # counts do not fit into a byte
FIVE = {"agents": 5, "retention": 0.3, "graph": {"name": "erdos-renyi", "p": 0.6}}  # in a matching one is left over
CASES: dict[str, dict[str, Any]] = {
    **{entry.name: {"algorithm": entry.name} for entry in algorithms},
    "guard": {"algorithm": {"name": "mce-pl", "guard": 1.2}},
    "float16": {"algorithm": "dis-pfl", "exchange": {"values": "float16"}},
    "clip": {"algorithm": {"name": "dsgd", "clip": 0.7}},
    **{f"liars-{kind}": {"algorithm": "mce-pl", "liars": {"count": 1, "kind": kind}}
       for kind in ("random", "inverted", "crafted")},
    "redrawn": {**FIVE, "algorithm": "mce-pl", "schedule": {"name": "redrawn", "every": 2}},
    "one-peer": {**FIVE, "algorithm": "mce-pl", "schedule": "one-peer-exponential"},
    "matching": {**FIVE, "algorithm": "accord", "schedule": "matching"},
    "matching-graph": {**FIVE, "algorithm": "dsgd", "schedule": {"name": "matching", "among": "graph"}},
    **{f"asynchronous-{entry.name}": {"algorithm": entry.name, "asynchronous": UNEVEN}
       for entry in algorithms if not (entry.make.hears_all or entry.make.needs_every_message)},
}  # fmt: skip
TOGETHER = [case for case, changes in CASES.items() if "asynchronous" not in changes]
BY_HASH = {"accord", "mce-pl", "ind-mask", "guard", "redrawn", "one-peer", "matching"}  # in a fleet


@pytest.fixture(scope="module")
def alone(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunResult]:
    """A case in one process, by one worker."""
    folder = tmp_path_factory.mktemp("alone")

    @cache
    def run(case: str) -> RunResult:
        return run_experiment(small(**CASES[case], rounds=4), folder / case, execution=ALONE)

    return run


@pytest.mark.parametrize(("place", "case"), list(enumerate(CASES)))
def test_stopped_and_resumed_by_many_workers(
    alone: Callable[..., RunResult], tmp_path: Path, place: int, case: str
) -> None:
    """After one, two or three of four rounds; a checkpoint is due after two."""
    whole = alone(case)
    assert (
        run_experiment(whole.config, tmp_path, execution=stop_after(1 + place % 3, workers=3)).status == "interrupted"
    )
    equal(resume_experiment(tmp_path, Execution(device="cpu", workers=3)), whole)


@pytest.mark.parametrize("case", [case for case in CASES if case not in TOGETHER])
def test_played_again(alone: Callable[..., RunResult], tmp_path: Path, case: str) -> None:
    """By a trace in a file, as a fleet leaves one."""
    whole = alone(case)
    write_trace(tmp_path / "trace.csv", trace_for(build(whole.config), RunFolder(tmp_path / "none")))
    asynchronous = {"weights": UNEVEN["weights"], "trace": str(tmp_path / "trace.csv")}
    config = make_config({**whole.config.table(), "asynchronous": asynchronous})
    equal(run_experiment(config, tmp_path / "again", execution=ALONE), whole)


def test_in_ranks(alone: Callable[..., RunResult], tmp_path: Path) -> None:
    """All cases by two ranks that start once, so one test."""
    with RankRun(tmp_path, 2) as ranks:
        ranks.start({case: alone(case).config.toml() for case in TOGETHER}, work=run_all)
        assert ranks.join() == [0, 0], ranks.lines()
    hashes = {case: (RunResult.open(tmp_path / case).hash, alone(case).hash) for case in TOGETHER}
    assert [case for case, (ours, theirs) in hashes.items() if ours != theirs] == []
    for case in TOGETHER:
        equal(RunResult.open(tmp_path / case), alone(case))


def run_all(configs: dict[str, str]) -> None:
    from peermask.run.rank_group import join_ranks
    from peermask.run.start import take_part

    with join_ranks(device="cpu") as ranks:
        execution = Execution(device="cpu", workers=1, ranks=ranks)
        for case, text in configs.items():
            config = make_config(tomllib.loads(text))
            if ranks.first:
                run_experiment(config, Path(case), execution=execution)
            else:
                take_part(config, execution)


@pytest.mark.parametrize("case", [case for case in TOGETHER if "liars" not in case])
def test_as_a_fleet(alone: Callable[..., RunResult], tmp_path: Path, case: str) -> None:
    expected = alone(case)
    scheduled = "schedule" in CASES[case] or algorithms[expected.config.algorithm.name].make.needs_every_message
    fleet = tiny_fleet(expected.config, missing="wait" if scheduled else "last")
    made = MemoryFleet(fleet, tmp_path, MovedTime())
    assert set(made.run().values()) == {"finished"}
    run = collect_run(fleet, [made.out(agent) for agent in range(len(fleet.agents))], tmp_path / "run")
    assert read_rows(tmp_path / "run" / "absences.csv") == []
    if case in BY_HASH:
        assert (run.hash, run.sent_bytes) == (expected.hash, expected.sent_bytes)
    for ours, theirs in zip(run.local_models(), expected.local_models(), strict=True):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def equal(run: RunResult, whole: RunResult) -> None:
    assert (run.status, run.hash, run.sent_bytes) == (whole.status, whole.hash, whole.sent_bytes)
    assert_same(run.root, whole.root)
