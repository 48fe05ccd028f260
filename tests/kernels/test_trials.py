"""What a round calls was compiled before it, told without a GPU: launches are noted, not computed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from peermask.algorithms.message import as_message
from peermask.compute.network import Batch, build_network
from peermask.data.dataset import gather_triton
from peermask.kernels import by_kernels
from peermask.masks.aggregation import add_own_votes, aggregated_magnitude, fine_tune, pull_scores
from peermask.masks.masker import Masker, MaskOptions
from peermask.masks.scores import step_scores
from peermask.masks.select import top_fraction_by_layer
from peermask.models.architectures import ResidualBlock, cnn, mlp
from peermask.run.assemble import _gather, _of_masks
from peermask.run.simulator import join_messages
from peermask.wire.cost import message_cost

BATCH, CPU = 20, torch.device("cpu")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, ...]]:
    """Every launch as a kernel and its variant, as Triton tells them apart; all tensors pass for those of a GPU."""
    jit = pytest.importorskip("triton.runtime.jit")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("interpreted kernels have no variants")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    backend = make_backend(GPUTarget("cuda", 90, 32))
    noted: set[tuple[str, ...]] = set()

    @cache
    def binder(kernel: Any) -> Any:
        return jit.create_function_from_signature(kernel.signature, kernel.params, backend)

    def note(kernel: Any, *args: object, grid: object, warmup: bool, **options: object) -> None:  # noqa: ARG001
        _, variant, others = binder(kernel)(*args, debug=False, **options)
        noted.add((kernel.__name__, str(variant), str(others)))

    monkeypatch.setattr(jit.JITFunction, "run", note)
    for module in [module for name, module in sys.modules.items() if name.startswith("peermask.")]:
        if getattr(module, "by_kernels", None) is by_kernels:
            monkeypatch.setattr(module, "by_kernels", lambda _: True)
    return noted


def residual() -> nn.Module:
    first = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.GroupNorm(2, 32), nn.ReLU()]
    blocks = [ResidualBlock(32, 64, 2, 2), ResidualBlock(64, 64, 1, 2)]
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


@pytest.mark.parametrize(
    ("make", "shape"), [(cnn, (1, 28, 28)), (mlp, (1, 8, 8)), (lambda *_: residual(), (3, 16, 16))]
)
@pytest.mark.parametrize("agents", [3, 8])
def test_networks_launch_what_was_compiled(
    make: Callable[..., nn.Module], shape: tuple[int, ...], agents: int, launched: set[tuple[str, ...]]
) -> None:
    network = build_network(make(shape, 10), shape, 10)
    assert network.stack is not None
    for trial in network.stack.trials(network.layout, shape, BATCH, CPU):
        trial()
    before = set(launched)
    assert bool(before) == (make is not mlp)
    params = torch.zeros(agents, network.layout.total)
    batch = Batch(torch.zeros(agents, BATCH, *shape), torch.zeros(agents, BATCH, dtype=torch.int64))
    network.gradient(params, batch)
    network.outputs(params, batch.inputs)
    assert launched == before


@pytest.mark.parametrize("classes", [10, 16])  # layers that begin with a line of memory, or not
def test_masks_and_messages_launch_what_was_compiled(launched: set[tuple[str, ...]], classes: int) -> None:
    """All but what is computed of links, which are no matrix on a CPU."""
    agents, layout = 3, build_network(cnn((1, 28, 28), classes), (1, 28, 28), classes).layout
    for trial in _of_masks(layout, CPU):
        trial()
    _gather((1, 28, 28), CPU)
    before = set(launched)
    scores, gradient = torch.rand(agents, layout.weights), torch.rand(agents, layout.total)[:, : layout.weights]
    votes, voters = torch.zeros(agents, layout.weights, dtype=torch.uint8), torch.ones(agents, dtype=torch.int64)
    masker, mask = Masker(layout, torch.rand(layout.total), MaskOptions()), votes.bool()
    keep, index = torch.tensor([layout.sizes] * agents), torch.zeros(agents, BATCH, dtype=torch.int64)
    masker.model(mask, keep)
    for velocity, momentum in ((None, 0.0), (scores, 0.9)):
        for relative in (False, True):
            step_scores(
                scores, gradient, masker.weights(keep), velocity, 0.1, momentum, 0.0, 0.0, layout, relative=relative
            )
    top_fraction_by_layer(aggregated_magnitude(scores, votes, voters, 0.5, layout), keep, layout.sizes)
    fine_tune(scores, scores, votes, voters, 0.1)
    pull_scores(scores, votes, voters, mask, 0.5, layout)
    pull_scores(scores, votes, voters, mask, torch.rand(agents), layout)
    add_own_votes(votes, voters, mask)
    gather_triton(torch.zeros(50, 1, 28, 28, dtype=torch.uint8), torch.zeros(50, dtype=torch.int64), index, 255.0)
    values = as_message(torch.rand(agents, layout.total), layout.weights)
    for payload in ({"mask": mask}, join_messages([values])):
        known = None
        for _ in range(3):
            _, known = message_cost(payload, known, layout.sizes)
    assert launched == before
