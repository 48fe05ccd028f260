"""The loop does not know its world: agents shared out between two processes end as in one.

Threads stand for the processes, and a board for what moves between them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from peermask.algorithms.contract import Clock, Payload
from peermask.engine.round import concatenated
from peermask.engine.simulator import Simulator
from peermask.experiment.build import build, build_simulator
from peermask.experiment.checkpoint import Checkpoint, Progress, last_good
from peermask.experiment.concatenation import Concatenation
from peermask.experiment.config import ExperimentConfig
from peermask.experiment.execution import Execution, Status
from peermask.experiment.folder import RunFolder
from peermask.experiment.loop import Loop, final_hash
from peermask.experiment.runner import run_experiment
from peermask.experiment.table import read_rows
from peermask.graph.mixing import Mixing

SHARDS = (slice(0, 3), slice(3, 4))
Small = Callable[..., ExperimentConfig]


class Board:
    """Everybody puts something on it and sees what all have put, in the order of shards."""

    def __init__(self) -> None:
        self.slots: dict[int, Any] = {}
        self.barrier = threading.Barrier(len(SHARDS), timeout=30)

    def gather(self, shard: int, value: Any) -> list[Any]:
        self.slots[shard] = value
        self.barrier.wait()
        gathered = [self.slots[other] for other in range(len(SHARDS))]
        self.barrier.wait()
        return gathered


class Sharded(Concatenation):
    """A of N agents are here; all messages come to every shard."""

    def __init__(self, board: Board, shard: int, simulator: Simulator, *parts: Any) -> None:
        experiment, folder, sent = parts
        super().__init__(experiment, folder, simulator, sent)
        self.board, self.shard, self.all_messages = board, shard, Payload()

    def move(self, clock: Clock, shared: Sequence[Payload]) -> tuple[Payload, Sequence[Mixing]]:
        self.messages, mixings = self.simulator.concatenate(clock, shared)
        self.all_messages = concatenated(self.board.gather(self.shard, self.messages))
        return self.all_messages, mixings

    def count(self, round: int) -> None:
        self.ledger.record(round, self.all_messages)

    def everyone(self, rows: Tensor) -> Tensor:
        return torch.cat(self.board.gather(self.shard, rows))


@pytest.mark.parametrize("algorithm", ["mce-pl", "dsgd", "fl"])
def test_agents_shared_out_between_processes_end_as_in_one(small: Small, tmp_path: Path, algorithm: str) -> None:
    config = small(
        rounds=7,
        algorithm=algorithm,
        evaluation={"every": 2, "unmixed": True},
        stop={"patience": 2, "tolerance": 1.0},
    )
    whole = run_experiment(config, tmp_path / "whole", execution=Execution(device="cpu"))
    experiment, board = build(config), Board()
    start = Checkpoint(Progress(0, config.hash, experiment.frozen.checksum), {}, {}, {})

    def play(shard: int) -> tuple[Status, Progress]:
        folder = RunFolder(tmp_path / f"shard-{shard}")
        folder.create()
        execution = Execution(writes="never" if shard else "beside")
        with build_simulator(experiment, torch.device("cpu"), rows=SHARDS[shard]) as simulator:
            exchange = Sharded(board, shard, simulator, experiment, folder, start.sent)
            loop = Loop(experiment, folder, simulator, exchange, execution, start)
            return loop.run(), loop.progress

    with ThreadPoolExecutor(len(SHARDS)) as pool:
        ended = list(pool.map(play, range(len(SHARDS))))
    assert [(status, progress.round) for status, progress in ended] == [(whole.status, whole.round)] * 2
    written = RunFolder(tmp_path / "shard-0")
    saved = last_good(written.checkpoints, config.hash, experiment.frozen.checksum, print)
    assert saved is not None
    assert final_hash(saved.states) == whole.hash
    for name in ("metrics.csv", "traffic.csv"):
        ours, theirs = (read_rows(folder / name) for folder in (written.path, tmp_path / "whole"))
        assert [{**row, "seconds": ""} for row in ours] == [{**row, "seconds": ""} for row in theirs]
    assert not (tmp_path / "shard-1" / "metrics.csv").exists()
    assert list((tmp_path / "shard-1" / "checkpoints").iterdir()) == []
