"""The kernels against their reference implementations, where there is a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from peermask.algorithms import algorithms
from peermask.algorithms.contract import Clock
from peermask.compute.conv_block import Activation, ConvBlock, shapes_of
from peermask.compute.conv_trunk import run_trunk
from peermask.compute.device import rows_on_cpu
from peermask.compute.network import Batch, build_network
from peermask.config.file import make_config
from peermask.graph.links import Links
from peermask.graph.sums import count_votes
from peermask.models.architectures import alexnet, cnn
from peermask.run.assemble import build_simulator
from peermask.run.build import build
from peermask.wire.cost import message_cost
from trunk_reference import apart, from_reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


ALEXNET = (
    ConvBlock(1, "elu", 5e-6, 3, 2, 0),
    ConvBlock(1, "elu", 2.5e-5, 3, 2, 0),
    ConvBlock(1, "elu", 2.5e-2, 3, 2, 1),
)
SMALL = (ConvBlock(2, "relu", None, 2, 2, 0), ConvBlock(2, "relu", None, 2, 2, 0))


@pytest.mark.parametrize(
    ("blocks", "channels", "side", "biased", "gain"),
    [
        (ALEXNET, (3, 64, 128, 256), 32, False, 1.0),
        (SMALL, (1, 32, 64), 28, True, 1.0),
        (SMALL, (32, 64), 9, True, 1e4),
    ],
)
@pytest.mark.parametrize("pooling", [True, False])
def test_a_trunk_equals_its_reference(
    blocks: tuple[ConvBlock, ...], channels: tuple[int, ...], side: int, biased: bool, gain: float, pooling: bool
) -> None:
    torch.manual_seed(0)
    if not pooling:  # without windows in which rounding may choose another entry, gradients agree far better
        blocks, side = tuple(replace(block, pool=1, pool_stride=1, pool_padding=0) for block in blocks), 14
    x = gain * torch.randn(3, 7, channels[0], side, side, device="cuda").permute(0, 1, 3, 4, 2)
    pairs = list(pairwise(channels))
    blocks = blocks[: len(pairs)]
    weights = [torch.randn(3, out, into, 5, 5, device="cuda") / (5 * into**0.5) for into, out in pairs]
    biases = [torch.randn(3, out, device="cuda") if biased else None for _, out in pairs]
    result, *gradients = from_reference(blocks, x, weights, biases, 1 / gain)
    assert result < 0.005
    chosen = pooling or blocks[0].activation == "relu"  # by rounding, in windows or at zero
    assert max(gradients) < (0.1 if chosen else 0.005)


@pytest.mark.parametrize("activation", ["none", "elu", "relu"])
def test_a_number_that_is_none_stays_one(activation: Activation) -> None:
    x = torch.randn(1, 2, 1, 5, 5, device="cuda").permute(0, 1, 3, 4, 2)
    x[0, 0, 2, 2, 0] = float("nan")
    weights = [torch.randn(1, 32, 1, 3, 3, device="cuda"), torch.randn(1, 32, 32, 3, 3, device="cuda")]
    block = ConvBlock(1, activation, None, 1, 1, 0)
    shapes = shapes_of((block, block), 5, 5, [w.shape[1:] for w in weights])
    assert run_trunk(shapes, x, weights, [None, None]).isnan().any()


def test_an_agent_is_computed_alike_in_any_chunk() -> None:
    torch.manual_seed(0)
    x = torch.randn(20, 7, 1, 28, 28, device="cuda").permute(0, 1, 3, 4, 2)
    weights = [torch.randn(20, 32, 1, 5, 5, device="cuda") / 5, torch.randn(20, 64, 32, 5, 5, device="cuda") / 28]
    biases = [torch.randn(20, 32, device="cuda"), torch.randn(20, 64, device="cuda")]
    shapes = shapes_of(SMALL, 28, 28, [w.shape[1:] for w in weights])

    def computed(rows: slice) -> list[torch.Tensor]:
        leaves = [leaf[rows].clone().requires_grad_() for leaf in (*weights, *biases)]
        y = run_trunk(shapes, x[rows], leaves[:2], leaves[2:])
        return [y, *torch.autograd.grad(y.sum(), leaves)]

    for together, alone in zip(computed(slice(0, 20)), computed(slice(3, 5)), strict=True):
        assert torch.equal(together[3:5], alone)


def test_chunks_that_count_differently_far_are_joined_on_the_cpu() -> None:
    few, many = torch.full((2, 3), 7, dtype=torch.uint8), torch.full((1, 3), 299, dtype=torch.int16)
    assert rows_on_cpu([few.cuda(), many.cuda()]).tolist() == [[7] * 3, [7] * 3, [299] * 3]


def test_more_weights_than_32_bits_can_number() -> None:
    """Of the last of many agents: what lies past 2³¹ entries is read and written where it should be."""
    agents, width = 2200, 1_000_000
    votes = torch.zeros(agents, width, dtype=torch.bool, device="cuda")
    votes[-1, -3:] = True
    chosen = torch.zeros(agents, agents, dtype=torch.bool, device="cuda")
    chosen[-1, -1] = chosen[0, -1] = True
    counted = count_votes(Links.of(chosen), votes, torch.uint8)
    assert counted.sum(dtype=torch.int64) == 6
    assert counted[-1, -3:].tolist() == counted[0, -3:].tolist() == [1, 1, 1]


@pytest.mark.parametrize(("make", "shape"), [(alexnet, (3, 32, 32)), (cnn, (1, 28, 28))])
def test_gradients_follow_the_general_path(make, shape) -> None:  # type: ignore[no-untyped-def]
    network = build_network(make(shape, 10).cuda().cpu(), shape, 10)
    network = replace(network, module=network.module.cuda())
    general = replace(network, stack=None)
    torch.manual_seed(0)
    params = 0.05 * torch.randn(3, network.layout.total, device="cuda")
    batch = Batch(torch.randn(3, 16, *shape, device="cuda"), torch.randint(0, 10, (3, 16), device="cuda"))
    assert apart(network.gradient(params, batch)[0], general.gradient(params, batch)[0]) < 0.05
    assert apart(network.outputs(params, batch.inputs), general.outputs(params, batch.inputs)) < 0.01


@pytest.mark.parametrize("chunk", [None, 3])
def test_a_run_on_a_gpu_learns_as_on_a_cpu(chunk: int | None) -> None:
    config = make_config(
        {"rounds": 60, "agents": 6, "retention": 0.3, "graph": "ring", "algorithm": {"name": "mce-pl"}}
    )
    accuracies = []
    for device in ("cpu", "cuda"):
        with build_simulator(build(config), torch.device(device), chunk if device == "cuda" else None) as simulator:
            for number in range(1, config.rounds + 1):
                simulator.play(Clock(number, config.rounds))
            accuracies.append(float(simulator.test().main.mean()))
    assert abs(accuracies[0] - accuracies[1]) < 0.03


@pytest.mark.parametrize("name", [entry.name for entry in algorithms])
@pytest.mark.parametrize("chunk", [None, 3])
def test_every_algorithm_plays_on_a_gpu_as_on_a_cpu(
    name: str, chunk: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One round in full float32: rounding moves scores near a threshold across it, and what follows from that grows
    from round to round; in TF32 FedMask's first round, of five batches, is enough for that."""
    monkeypatch.setattr("peermask.run.simulator.fast_float32", nullcontext)
    settings = {"agents": 4, "rounds": 3, "retention": 0.3, "graph": "ring", "model": "mlp", "algorithm": name}
    config = make_config({**settings, "data": {"fraction": 0.3}})
    models, losses = [], []
    for device in ("cpu", "cuda"):
        with build_simulator(build(config), torch.device(device), chunk if device == "cuda" else None) as simulator:
            played = simulator.play(Clock(1, 3))
            if played.shared:
                message_cost(played.shared, None, simulator.feeds[0].network.layout.sizes)
            models.append(simulator.local_models())
            losses.append(played.losses.cpu())
    assert torch.allclose(losses[0], losses[1], rtol=0.01)
    assert float((~torch.isclose(models[0], models[1], rtol=0.01, atol=1e-3)).float().mean()) < 0.05
