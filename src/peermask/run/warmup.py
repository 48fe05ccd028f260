"""Warm-up of a GPU: kernels are compiled side by side; in turn they would take most of a short run's time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Thread

import torch
from torch import Tensor

from peermask.algorithms.message import as_message
from peermask.compute.device import made_current
from peermask.compute.network import Network
from peermask.data.dataset import gather_triton
from peermask.graph.links import Links
from peermask.graph.sums import FEW, count_votes
from peermask.masks.aggregation import aggregated_magnitude, fine_tuned, pulled, with_own_votes
from peermask.masks.guard import believed_links
from peermask.masks.masker import Masker, MaskOptions
from peermask.masks.scores import stepped
from peermask.masks.select import top_fraction_by_layer
from peermask.models.layout import Layout
from peermask.models.outputs import cross_entropy
from peermask.run.metrics import Tally
from peermask.run.simulator import concatenated
from peermask.wire.cost import message_cost
from peermask.wire.schema import Payload


def wake(device: torch.device) -> None:
    """Initialise a GPU in its own thread while the caller reads data. Errors are ignored: its first use raises them.

    PyTorch creates a context and loads its own kernels when they are first called; Triton hashes all its files.
    """
    if device.type == "cuda" and not torch.cuda.is_initialized():  # a sweep runs many experiments
        Thread(target=_wake, args=(device,)).start()


def _wake(device: torch.device) -> None:
    with suppress(Exception), made_current(device):
        rehearse(device)


def rehearse(device: torch.device) -> None:
    """Compute a loss, its gradient and an evaluation of two outputs, and launch a Triton kernel, to load their code."""
    _first_launch(device)
    labels = torch.zeros(1, 8, dtype=torch.int64, device=device)
    outputs = torch.zeros(1, 8, 2, device=device, requires_grad=True)
    cross_entropy(outputs.flatten(0, 1), labels.flatten()).sum().backward()
    tally = Tally(torch.ones(1, 2, device=device), "all")
    tally.add(outputs.detach() @ torch.eye(2, device=device), labels, labels == 0)
    tally.figures()


def _first_launch(device: torch.device) -> object:
    one = Links.of(torch.ones(1, 1, dtype=torch.bool, device=device))
    return count_votes(one, torch.zeros(1, 1024, dtype=torch.bool, device=device), torch.uint8)


def compile_kernels(network: Network, shape: tuple[int, ...], batch: int, device: torch.device) -> None:
    """Call every kernel once for a single agent, whose shapes per agent are those of all."""
    if device.type != "cuda":
        return
    with made_current(device):
        work = _of_masks(network.layout, device)
        if len(shape) == 3:
            work.append(lambda: _gather(shape, device))
        if network.stack is not None:
            work += network.stack.trials(network.layout, shape, batch, device)
        _first_launch(device)  # threads that begin together would each hash Triton's files
    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(_on, device, trial) for trial in work]:
            done.result()
    torch.cuda.synchronize(device)


def _on(device: torch.device, trial: Callable[[], object]) -> None:
    with made_current(device):  # of this thread
        trial()


def _gather(shape: tuple[int, ...], device: torch.device) -> object:
    image = torch.zeros(1, *shape, dtype=torch.uint8, device=device)
    index = torch.zeros(1, 1, dtype=torch.int64, device=device)
    return gather_triton(image, index[0], index, 1.0)


def _count_twice(message: Payload, sizes: Sequence[int]) -> object:
    """Count a first message, and one that follows another."""
    _, known = message_cost(message, None, sizes)
    return message_cost(message, known, sizes)


def _steps(scores: Tensor, gradient: Tensor, weights: Tensor, layout: Layout) -> None:
    """Take steps with momentum and without, absolute and relative."""
    for velocity, momentum in ((None, 0.0), (scores, 0.5)):
        for relative in (False, True):
            stepped(scores, gradient, weights, velocity, 1.0, momentum, 0.0, 0.0, layout, relative=relative)


def _of_masks(layout: Layout, device: torch.device) -> list[Callable[[], object]]:
    scores = torch.rand(1, layout.weights, device=device)
    votes = torch.zeros(1, layout.weights, dtype=torch.uint8, device=device)
    mask = votes.bool()
    keep = torch.tensor([layout.sizes], device=device)
    voters = torch.ones(1, dtype=torch.int64, device=device)
    masker = Masker(layout, torch.rand(layout.total, device=device), MaskOptions())
    gradient = torch.rand(1, layout.total, device=device)[:, : layout.weights]
    links = Links.of(torch.ones(FEW + 1, 1, dtype=torch.bool, device=device))
    one = Links.of(torch.ones(1, 1, dtype=torch.bool, device=device))
    values = as_message(torch.rand(1, layout.total, device=device), layout.weights)
    messages = ({"mask": mask}, concatenated([values]))  # which puts each leaf into memory of its own, as in a round
    return [
        lambda: masker.model(mask, keep),
        lambda: _steps(scores, gradient, masker.weights(keep), layout),
        lambda: top_fraction_by_layer(scores, keep, layout.sizes),
        lambda: aggregated_magnitude(scores, votes, voters, 1.0, layout),
        lambda: count_votes(one, mask, torch.uint8),
        lambda: count_votes(links, mask, torch.uint8),  # many agents are counted in larger tiles
        lambda: fine_tuned(scores, scores, votes, voters, 1.0),
        lambda: with_own_votes(votes, voters, mask),
        lambda: pulled(scores, votes, voters, mask, 1.0, layout),
        lambda: believed_links(mask, mask, one, layout.sizes, 1.5),
        *(partial(_count_twice, sent, layout.sizes) for sent in messages),
    ]
