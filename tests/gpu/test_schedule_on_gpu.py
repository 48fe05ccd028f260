"""Graphs that change on a GPU: the same links as on a CPU, and bytes counted link by link."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from peermask.config.experiment import ExperimentConfig
from peermask.run.execution import Execution
from peermask.run.runner import resume_experiment, run_experiment
from peermask.store.table import read_rows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("schedule", ["matching", "one-peer-exponential"])
@pytest.mark.parametrize("algorithm", ["mce-pl", "accord", "dsgd"])
def test_the_same_links(small: Callable[..., ExperimentConfig], tmp_path: Path, schedule: str, algorithm: str) -> None:
    config = small(agents=5, retention=0.4, schedule=schedule, algorithm=algorithm)
    runs = [run_experiment(config, tmp_path / name, execution=Execution(device=name)) for name in ("cpu", "cuda")]
    here, there = ([row["links"] for row in read_rows(run.folder.traffic)] for run in runs)
    assert here == there
    assert runs[1].sent_bytes == pytest.approx(runs[0].sent_bytes, rel=0.1)
    asked = iter([False, True])
    stopped = Execution(device="cuda", should_stop=lambda: next(asked, False))
    run_experiment(config, tmp_path / "cut", execution=stopped)
    resumed = resume_experiment(tmp_path / "cut", execution=Execution(device="cuda"))
    assert read_rows(resumed.folder.traffic) == read_rows(runs[1].folder.traffic)
