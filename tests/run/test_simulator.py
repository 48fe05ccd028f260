"""Chunks, workers and the order of agents are matters of speed: results do not depend on them."""

from __future__ import annotations

import sys
from dataclasses import replace

import networkx as nx
import pytest
import torch
from torch import nn

from commands import Small
from peermask.algorithms.contract import Agents, Clock
from peermask.compute.device import pick_device
from peermask.config.file import make_config
from peermask.errors import RunError
from peermask.graph import build_mixing
from peermask.models.architectures import mlp
from peermask.run.assemble import activation_bytes, agents_at_once, assemble, build_simulator, chunk_that_fits
from peermask.run.build import Experiment, build
from peermask.run.simulator import Simulator

CPU = torch.device("cpu")


def played(experiment: Experiment, chunk: int, rounds: int = 3) -> Simulator:
    with build_simulator(experiment, CPU, chunk) as simulator:
        for number in range(1, rounds + 1):
            simulator.play(Clock(number, rounds))
    return simulator


def steps(experiment: Experiment, chunk: int) -> torch.Tensor:
    """η G, [N, P_w]: what the first learning step takes from the scores.

    After it a last bit of a score can flip an entry of a mask."""
    with build_simulator(experiment, CPU, chunk) as simulator:
        before, places = simulator.tensors()["scores"], range(len(simulator.states))
        learned = simulator.learn_some(places, [Clock(1, 3)] * len(places))
    return before - torch.cat([state.scores for state, _ in learned])


def assert_rounded_alike(ones: torch.Tensor, others: torch.Tensor) -> None:
    """A gradient adds up some hundred products, in any order, and the score it is taken from has one rounding more:
    64 units in the last place of the largest entry."""
    assert float((ones - others).abs().max()) <= 64 * 2.0**-24 * max(1.0, float(others.abs().max()))


@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_agents_in_chunks_learn_as_all_at_once(small: Small, chunk: int) -> None:
    experiment = build(small())
    assert_rounded_alike(steps(experiment, chunk), steps(experiment, 4))


def test_rounds_in_chunks_are_those_of_all_at_once(small: Small) -> None:
    """With real values, which no threshold cuts, roundings stay roundings: three steps of at most 64 units each."""
    experiment = build(small(algorithm="dsgd"))
    whole, parts = (played(experiment, chunk).tensors()["params"] for chunk in (4, 3))
    assert float((whole - parts).abs().max()) <= 3 * 64 * 2.0**-24 * max(1.0, float(whole.abs().max()))


def test_renaming_agents_renames_results(small: Small) -> None:
    """Agents, their links and their data permuted together: everybody ends as before, under another row."""
    experiment = build(small(graph="path"))
    order = [2, 0, 3, 1]  # the new row r is the old agent order[r]
    algorithm, feed = assemble(experiment, CPU)
    renamed = nx.relabel_nodes(experiment.schedule.base.graph(), {old: new for new, old in enumerate(order)})
    mixing = build_mixing(renamed, [len(experiment.samples[old].train) for old in order])
    agents = Agents(tuple(order), experiment.agents.keep[order], experiment.agents.retention[order])
    shuffled = replace(feed, samples=tuple(experiment.samples[old] for old in order), ids=tuple(order))
    with Simulator(algorithm, agents, shuffled, mixing, 1) as simulator:
        for number in range(1, 4):
            simulator.play(Clock(number, 3))
    plain = played(experiment, 1).tensors()
    for name, tensor in simulator.tensors().items():
        assert torch.equal(tensor, plain[name][order]), name


def test_threads_are_given_back(small: Small) -> None:
    before = torch.get_num_threads()
    played(build(small()), 1, rounds=1)
    assert torch.get_num_threads() == before


def test_agents_with_fewer_samples_than_a_batch_take_part(small: Small) -> None:
    experiment = build(small(data={"fraction": 0.05}, batch_size=64))
    assert min(len(own.train) for own in experiment.samples) < 64
    assert_rounded_alike(steps(experiment, 1), steps(experiment, 4))


def test_chunks_are_even_and_fit(small: Small) -> None:
    layout = build(small()).network.layout
    each = 8 * 4 * layout.total + 1000
    assert chunk_that_fits(20, layout, 1000, free=10**12) == 20
    assert chunk_that_fits(20, layout, 1000, free=int(each * 19 / 0.8)) == 10
    assert chunk_that_fits(20, layout, 1000, free=1) == 1


def test_a_chunk_leaves_room_for_the_agents_that_rest(small: Small) -> None:
    layout = build(small()).network.layout
    each, resting = 8 * 4 * layout.total + 1000, 12 * layout.total
    assert chunk_that_fits(1000, layout, 1000, free=int((10.1 * each + 1000 * resting) / 0.8)) == 10


def test_passes_need_what_modules_give_for_a_batch_or_an_evaluation() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    a_batch, widest = 4 * (64 + 100 + 100 + 10), 4 * 100  # bytes an image, in all modules and in one
    assert activation_bytes(module, torch.zeros(1, 1, 8, 8), 1000, fused=True) == 2 * 1000 * a_batch
    assert activation_bytes(module, torch.zeros(1, 1, 8, 8), 1000, fused=False) == 5 * 1000 * a_batch
    assert activation_bytes(module, torch.zeros(1, 1, 8, 8), 1, fused=False) == 5 * 500 * widest


def test_agents_for_a_gpu_are_counted_before_anything_is_moved_there(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (10**12, 10**12))
    experiment = build(small())
    assert agents_at_once(experiment, torch.device("cuda")) == experiment.config.agents


def test_a_module_of_the_callers_stays_as_it_is(small: Small) -> None:
    module = mlp((1, 8, 8), 10, hidden=(4,))
    experiment = build(small(), module=module)
    build_simulator(experiment, CPU)
    assert experiment.network.module is not module
    assert module.training
    assert all(parameter.requires_grad for parameter in module.parameters())


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cpu:", "cpu:0", "cuda:-1", "cuda:\u00b2", "cuda:1:1", ""])
def test_a_device_that_no_machine_has_is_named(name: str) -> None:
    with pytest.raises(RunError, match="is not one of cpu, cuda, cuda:N, auto"):
        pick_device(name)


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_a_gpu_needs_triton(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(RunError, match=r"device 'cuda' needs Triton 3\.4 or later, .*; use --device cpu"):
        pick_device(name)


def test_a_checkpoint_of_another_shape_of_state_is_refused(small: Small) -> None:
    simulator = played(build(small()), 1, rounds=1)
    tensors = simulator.tensors()
    with pytest.raises(RunError, match="holds scores; this version needs keep, mask, scores, voters, votes"):
        simulator.restore({"scores": tensors["scores"]})
    with pytest.raises(RunError, match=r"holds .*, zeal; this version needs"):
        simulator.restore({**tensors, "zeal": tensors["scores"]})


def test_the_first_agents_of_a_thread_compute_as_all_others_do() -> None:
    """A thread's first operations once used all cores, and rounded otherwise: agents of small batches showed it."""
    config = make_config(
        {
            "agents": 16,
            "rounds": 4,
            "batch_size": 8,
            "retention": 0.3,
            "graph": {"name": "ring"},
            "data": {"fraction": 0.1},
            "model": {"name": "mlp", "hidden": [12]},
        }
    )
    ended = []
    for workers in (1, 2, 3):
        with build_simulator(build(config), torch.device("cpu"), workers=workers) as simulator:
            for number in range(1, 5):
                simulator.play(Clock(number, 4))
            ended.append(simulator.tensors()["scores"])
    assert torch.equal(ended[0], ended[1])
    assert torch.equal(ended[0], ended[2])
