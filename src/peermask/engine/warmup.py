"""Compiles the GPU kernels of a run side by side: one after another they take most of a short run's time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from peermask.kernels import have_triton
from peermask.masks.aggregation import aggregated_magnitude
from peermask.masks.select import top_fraction_by_layer
from peermask.models.layout import Layout
from peermask.models.network import Network
from peermask.wire.device_cost import set_size_torch


def compile_kernels(network: Network, shape: tuple[int, ...], batch: int, device: torch.device) -> None:
    """Call every kernel once for a single agent, whose shapes per agent are those of all."""
    if device.type != "cuda" or not have_triton():
        return
    work = [*_of_masks(network.layout, device)]
    if network.stack is not None:
        work += network.stack.trials(network.layout, shape, batch, device)
    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(_on, device, trial) for trial in work]:
            done.result()
    torch.cuda.synchronize(device)


def _on(device: torch.device, trial: Callable[[], object]) -> None:
    with torch.cuda.device(device):
        trial()


def _of_masks(layout: Layout, device: torch.device) -> list[Callable[[], object]]:
    scores = torch.rand(1, layout.weights, device=device)
    votes = torch.zeros(1, layout.weights, dtype=torch.uint8, device=device)
    keep = torch.tensor([layout.sizes], device=device)
    voters = torch.ones(1, dtype=torch.int64, device=device)
    return [
        lambda: top_fraction_by_layer(scores, keep, layout.sizes),
        lambda: aggregated_magnitude(scores, votes, voters, 1.0, layout),
        lambda: set_size_torch(votes.bool(), layout.sizes),
    ]
