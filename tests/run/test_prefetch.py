"""Batches drawn ahead are those that a round would draw itself, and drawing begins only when it is told to."""

from __future__ import annotations

from collections.abc import Callable

import torch

from peermask.algorithms.contract import Clock
from peermask.config.experiment import ExperimentConfig
from peermask.run.assemble import build_simulator
from peermask.run.build import build
from peermask.run.feed import Prefetch


def test_draws_of_the_next_round(small: Callable[..., ExperimentConfig]) -> None:
    feed = build_simulator(build(small()), torch.device("cpu")).feeds[0]
    drawn, first, second = Prefetch(), Clock(1, 9), Clock(2, 9)
    drawn.draws(feed, first, [0, 1])
    assert not drawn.ahead
    drawn.start()
    assert list(drawn.ahead) == [second]
    for step, (index,) in enumerate(drawn.draws(feed, second, [0, 1])):
        assert torch.equal(index, feed.draw(second, step)[0])
    assert not drawn.ahead
