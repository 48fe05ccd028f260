"""What gets a GPU ready, on a CPU: tests/gpu has the rest."""

from __future__ import annotations

import threading

import torch

from peermask.run.warmup import rehearse, wake


def test_a_rehearsal_calls_what_a_round_and_an_evaluation_do() -> None:
    rehearse(torch.device("cpu"))  # where it is called on a GPU, errors are left to the first round


def test_a_cpu_is_awake() -> None:
    before = threading.active_count()
    wake(torch.device("cpu"))
    assert threading.active_count() == before
