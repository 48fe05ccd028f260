"""Steps that are declared recordable, played on tensors without values: what reads one on the host fails."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from peermask.algorithms import algorithms
from peermask.algorithms.contract import Algorithm, Clock
from peermask.compute.network import Batch
from peermask.config.file import make_config
from peermask.graph import sums
from peermask.masks import aggregation, guard, select
from peermask.run.assemble import algorithm_on, assemble
from peermask.run.build import build
from peermask.run.cuda_graphs import RecordedClock, tensors_of, with_tensors
from peermask.run.feed import Feed
from peermask.wire.schema import Payload

CPU, META = torch.device("cpu"), torch.device("meta")
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"momentum": 0.9}, {"guard": 2.0}, {"clip": 1.0})
CASES = [
    (entry.name, options)
    for entry in algorithms
    for options in OPTIONS
    if set(options) <= set(entry.options.model_fields)
]


@dataclass(frozen=True)
class Batches:
    """Batches without values."""

    feed: Feed

    @property
    def sizes(self) -> Tensor:
        return self.feed.sizes.to(META)

    def batch(self, clock: Clock, step: int = 0) -> Batch:  # noqa: ARG002
        batch = self.feed.batch(Clock(5, 11), step)
        valid = None if batch.valid is None else batch.valid.to(META)
        return Batch(batch.inputs.to(META), batch.targets.to(META), valid)

    def validation_accuracy(self, params: Tensor) -> Tensor:  # noqa: ARG002
        pytest.fail("a recording has no validation data")


def play(name: str, options: dict[str, Any], change: Callable[[Algorithm[Any]], None] = lambda _: None) -> None:
    """Play the steps that an algorithm declares, after 4 of 11 rounds and after 10."""
    algorithm = {"name": name, "schedule": "cosine", **options}
    values = {"agents": 3, "retention": [0.2, 0.4, 0.4], "batch_size": 8, "model": "cnn", "dataset": "digits"}
    experiment = build(make_config(values | {"rounds": 11, "algorithm": algorithm}))
    real, feed = assemble(experiment, CPU)
    module = copy.deepcopy(experiment.network.module).to(META)
    without = algorithm_on(experiment, replace(experiment.network, module=module), META)
    change(without)
    state = real.init(experiment.agents)
    learned, _ = real.learn(state, feed, Clock(5, 11))
    for number in (5, 11):
        clock = RecordedClock.of(Clock(number, 11), torch.empty(9, 1, device=META))
        if "learn" in without.recordable:
            without.learn(_without_values(state), Batches(feed), clock)
        if "fuse" in without.recordable:
            message: Payload = {leaf: tensor.to(META) for leaf, tensor in real.share(learned).items()}
            without.fuse(_without_values(learned), message, experiment.mixing.to("meta"), clock)


def _without_values(state: Any) -> Any:
    return with_tensors(state, {name: tensor.to(META) for name, tensor in tensors_of(state).items()})


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of launches on a GPU, which read nothing on the host; their references on a CPU do."""
    for module in (aggregation, select):
        monkeypatch.setattr(module, "by_kernels", lambda x: x.device == META)
    monkeypatch.setattr(guard, "believed_links_triton", lambda _masks, _received, heard, *_: torch.empty_like(heard))
    monkeypatch.setattr(
        select, "top_fraction_by_layer_triton", lambda magnitude, *_: torch.empty_like(magnitude, dtype=torch.bool)
    )
    monkeypatch.setattr(
        sums, "count_votes_triton", lambda heard, votes, dtype: votes.new_empty(len(heard), votes.shape[1], dtype=dtype)
    )
    for name in ("fine_tune_triton", "pull_scores_triton", "aggregated_magnitude_triton", "add_own_votes_triton"):
        monkeypatch.setattr(aggregation, name, lambda scores, *_: torch.empty_like(scores))


@pytest.mark.parametrize(("name", "options"), CASES)
def test_recordable_steps_read_no_value(name: str, options: dict[str, Any]) -> None:
    play(name, options)


def test_a_plug_in_declares_nothing_by_default() -> None:
    assert Algorithm.recordable.fget(None) == ()  # type: ignore[attr-defined]


LIES: dict[str, Callable[[Tensor, Clock], object]] = {
    "Tensor.item": lambda params, _: params.sum().item(),
    "Cannot copy out of meta tensor": lambda params, _: params.cpu(),
    "torch.nonzero": lambda params, _: params[params > 0],
    "masked_select": lambda params, _: params.masked_select(params > 0),
    "reads clock.round": lambda _, clock: clock.round % 2,
    "reads clock.progress": lambda _, clock: clock.progress > 0.5,
}


@pytest.mark.parametrize("error", LIES)
def test_a_false_declaration_is_found(error: str) -> None:
    def lie(algorithm: Any) -> None:
        fuse = algorithm.fuse

        def lying(state: Any, received: Payload, mixing: Any, clock: Clock) -> Any:
            LIES[error](state.params, clock)
            return fuse(state, received, mixing, clock)

        algorithm.fuse = lying

    with pytest.raises(Exception, match=error):
        play("dsgd", {}, lie)
