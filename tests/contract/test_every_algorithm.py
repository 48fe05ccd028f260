"""What every registered algorithm must do; a new one is tested by registering it."""

from __future__ import annotations

from dataclasses import is_dataclass

import pytest
import torch
from torch import Tensor

from commands import Small
from peermask.algorithms import algorithms
from peermask.algorithms.contract import Clock
from peermask.run.assemble import assemble, build_simulator
from peermask.run.build import Experiment, build
from peermask.run.cuda_graphs import tensors_of
from peermask.run.simulator import Simulator

NAMES = [entry.name for entry in algorithms]
CPU = torch.device("cpu")


HALF = [f"{entry.name}, float16" for entry in algorithms if not entry.make.over_frozen_weights]


@pytest.fixture(params=[*NAMES, *HALF])
def experiment(request: pytest.FixtureRequest, small: Small) -> Experiment:
    name, _, values = request.param.partition(", ")
    return build(small(algorithm=name, **({"exchange": {"values": values}} if values else {})))


def played(experiment: Experiment, chunk: int = 1, rounds: int = 3) -> Simulator:
    with build_simulator(experiment, CPU, chunk) as simulator:
        for number in range(1, rounds + 1):
            simulator.play(Clock(number, rounds))
    return simulator


def test_states_are_frozen_rows_of_agents(experiment: Experiment) -> None:
    algorithm, _ = assemble(experiment, CPU)
    state = algorithm.init(experiment.agents)
    assert is_dataclass(state)
    assert state.__dataclass_params__.frozen  # type: ignore[attr-defined, union-attr]
    for name, tensor in tensors_of(state).items():
        assert tensor.shape[0] == 4, name


def test_a_round_ends_with_what_it_began_with(experiment: Experiment) -> None:
    """What only passes from learn to fuse is gone, so a checkpoint holds no more than the first state did."""
    algorithm, _ = assemble(experiment, CPU)
    before = tensors_of(algorithm.init(experiment.agents))
    after = played(experiment).tensors()
    assert set(after) == set(before)
    for name, tensor in after.items():
        assert tensor.shape == before[name].shape, name
        assert tensor.dtype == before[name].dtype, name


def test_messages_are_masks_or_rows_of_values(experiment: Experiment) -> None:
    algorithm, feed = assemble(experiment, CPU)
    state, loss = algorithm.learn(algorithm.init(experiment.agents), feed, Clock(1, 3))
    assert loss.shape == (4,)
    for name, leaf in algorithm.share(state).items():
        assert len(leaf) == 4, name
        assert leaf.dtype in (torch.bool, torch.float16 if experiment.config.exchange else torch.float32), name


def test_models_in_messages_are_those_of_their_senders(experiment: Experiment) -> None:
    """So that they can be tested before they are mixed; masks alone are no models."""
    algorithm, feed = assemble(experiment, CPU)
    state, _ = algorithm.learn(algorithm.init(experiment.agents), feed, Clock(1, 3))
    message = algorithm.share(state)
    models = algorithm.unmixed_model(message)
    if all(leaf.dtype == torch.bool for leaf in message.values()) or algorithm.needs_every_message:
        assert models is None  # changes of models are none either
    else:
        assert models is not None
        # A lottery's model is that after the round; a personal one is not sent.
        sent = next((getattr(state, name) for name in ("ticket", "agreed") if hasattr(state, name)), None)
        expected = algorithm.local_model(state) if sent is None else sent
        assert torch.equal(models, expected.half().float() if experiment.config.exchange else expected)


def test_a_local_model_is_a_whole_parameter_vector(experiment: Experiment) -> None:
    models = played(experiment).local_models()
    assert models.shape == (4, experiment.network.layout.total)
    assert bool(models.isfinite().all())


def test_learning_alone_or_stacked_is_the_same(experiment: Experiment) -> None:
    algorithm, feed = assemble(experiment, CPU)
    stacked, losses = algorithm.learn(algorithm.init(experiment.agents), feed, Clock(1, 3))
    for agent in range(4):
        own = slice(agent, agent + 1)
        alone, loss = algorithm.learn(algorithm.init(experiment.agents.rows(own)), feed.rows(own), Clock(1, 3))
        assert torch.allclose(loss[0], losses[agent], rtol=1e-4)
        for name, tensor in tensors_of(alone).items():
            assert differs(tensor[0], tensors_of(stacked)[name][agent]) < 0.01, name


def test_a_node_that_hears_its_neighbours_fuses_as_the_simulator_does(experiment: Experiment) -> None:
    """Exactly for masks, which are counted; within rounding for real values."""
    algorithm, feed = assemble(experiment, CPU)
    clock = Clock(1, 3)
    states = [algorithm.init(experiment.agents.rows(slice(i, i + 1))) for i in range(4)]
    learned = [algorithm.learn(state, feed.rows(slice(i, i + 1)), clock)[0] for i, state in enumerate(states)]
    shared = [algorithm.share(state) for state in learned]
    received = {name: torch.cat([payload[name] for payload in shared]) for name in shared[0]}
    for agent, state in enumerate(learned):
        mixing = experiment.mixing.rows(slice(agent, agent + 1))
        whole = algorithm.fuse(state, received, mixing, clock)
        heard = torch.arange(4) if algorithm.hears_all else next(iter(mixing.closed))
        partial = {name: leaf[heard] for name, leaf in received.items()}
        node = algorithm.fuse(state, partial, mixing.restrict(heard), clock)
        exact = all(leaf.dtype == torch.bool for leaf in received.values())
        for name, tensor in tensors_of(node).items():
            if exact:
                assert torch.equal(tensor, tensors_of(whole)[name]), name
            else:
                assert differs(tensor, tensors_of(whole)[name]) < 1e-3, name


def differs(a: Tensor, b: Tensor) -> float:
    """The share of entries that are not equal within rounding."""
    if a.dtype == torch.bool or not a.is_floating_point():
        return float((a != b).float().mean())
    return float((~torch.isclose(a, b, rtol=1e-3, atol=1e-5)).float().mean())


def test_a_round_of_several_batches(small: Small, experiment: Experiment) -> None:
    """It ends with the fields it began with, and learns something else than from one batch."""
    algorithm = experiment.config.algorithm.name
    once, twice = build(small(algorithm=algorithm)), build(small(algorithm=algorithm, local_batches=2))
    states = []
    for each in (once, twice):
        with build_simulator(each, CPU, 1) as simulator:
            for number in range(1, 3):
                simulator.play(Clock(number, 2, batches=each.config.local_batches or 1))
            states.append((simulator.tensors(), simulator.local_models()))
    (alone, one), (both, other) = states
    assert {name: tensor.shape for name, tensor in alone.items()} == {name: t.shape for name, t in both.items()}
    changed = any(not torch.equal(alone[name], both[name]) for name in alone) or not torch.equal(one, other)
    assert changed
