"""A network as a function of flat parameters: logits and gradients for a stack of agents, each with its own.

An algorithm calls `gradient` and never learns how it is computed. A single agent is a plain autograd pass in
channels-last layout (the fastest on a CPU); several go through fused kernels where the network is a chain of common
layers, and are vectorised over the agent axis where it is anything else.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from peermask.errors import ModelError
from peermask.models.alone import channels_last, optimise_for_cpu, pool_first
from peermask.models.layout import Layout, find_layout
from peermask.models.stacked import StackedChain, plan_stack


@dataclass(frozen=True)
class Batch:
    """One batch per agent; agents with fewer samples than the batch has places are padded."""

    images: Tensor  # [A, B, C, H, W] float32, normalised
    labels: Tensor  # [A, B] int64
    valid: Tensor | None = None  # [A, B] float32 1 at real samples; None where all are


Gradient = Callable[["Network", Tensor, Batch], tuple[Tensor, Tensor]]


class _OwnCopies(threading.local):
    """A copy of the module for each thread: calling one replaces its parameters during the call."""

    general: nn.Module | None = None
    alone: nn.Module | None = None


@dataclass(frozen=True)
class Network:
    module: nn.Module
    layout: Layout
    stack: StackedChain | None = None  # how to compute many agents at once, where the module is such a chain
    elsewhere: Gradient | None = None  # where gradients are computed, if not here: beside those of other runs
    _copies: _OwnCopies = field(default_factory=_OwnCopies, init=False, repr=False, compare=False)

    def gradient(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """∂ℓ/∂v of the mean cross-entropy, and ℓ itself: [A, P], [A]."""
        return self.gradient_here(params, batch) if self.elsewhere is None else self.elsewhere(self, params, batch)

    def gradient_here(self, params: Tensor, batch: Batch, parts: Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """`parts`: how many agents of each run, where they are those of several."""
        if len(params) == 1 and params.device.type == "cpu":
            return self._gradient_alone(params, batch)
        if self.stack is not None:
            return self._gradient_stacked(self.stack, params, batch, parts)
        return self._gradient_vectorised(params, batch)

    def logits(self, params: Tensor, images: Tensor) -> Tensor:  # [A, P], [A, B, C, H, W] -> [A, B, classes]
        with torch.no_grad():
            views = self.layout.unflatten(params)
            if len(params) == 1 and params.device.type == "cpu":
                alone = {name: channels_last(view[0]) for name, view in views.items()}
                return self._call_alone(alone, channels_last(images[0]))[None]
            return self.stack(views, images) if self.stack is not None else vmap(self._call)(views, images)

    def _call(self, params: dict[str, Tensor], images: Tensor) -> Tensor:
        if self._copies.general is None:
            self._copies.general = pool_first(copy.deepcopy(self.module))
        result: Tensor = functional_call(self._copies.general, params, (images,))
        return result

    def _call_alone(self, params: dict[str, Tensor], images: Tensor) -> Tensor:
        if self._copies.alone is None:
            self._copies.alone = optimise_for_cpu(copy.deepcopy(self.module))
        result: Tensor = functional_call(self._copies.alone, params, (images,))
        return result

    def _gradient_alone(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        # One leaf per layer: a single flat leaf would make autograd fill and add a whole vector for each.
        views = self.layout.unflatten(params.detach())
        leaves = {name: channels_last(view[0]).requires_grad_() for name, view in views.items()}
        with torch.enable_grad():
            logits = self._call_alone(leaves, channels_last(batch.images[0]))
            loss = _mean_cross_entropy(logits, batch.labels[0], None if batch.valid is None else batch.valid[0])
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        return torch.cat([g.reshape(-1) for g in gradients])[None], loss.detach()[None]

    def _gradient_stacked(
        self, stack: StackedChain, params: Tensor, batch: Batch, parts: Sequence[int] | None
    ) -> tuple[Tensor, Tensor]:
        leaves = {name: view.requires_grad_() for name, view in self.layout.unflatten(params.detach()).items()}
        with torch.enable_grad():
            logits = stack(leaves, batch.images, parts)  # [A, B, classes]
            each = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="none")
            each = each.view_as(batch.labels)  # [A, B]
            losses = each.mean(1) if batch.valid is None else (each * batch.valid).sum(1) / batch.valid.sum(1)
        gradients = torch.autograd.grad(losses.sum(), list(leaves.values()))  # agents share nothing: each its own
        flat = torch.empty_like(params)  # [A, P]
        for place, own in zip(self.layout.unflatten(flat).values(), gradients, strict=True):
            place.copy_(own)  # in whatever order a kernel wrote it: joining copies would be a second pass
        return flat, losses.detach()

    def _gradient_vectorised(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        def loss(views: dict[str, Tensor], images: Tensor, labels: Tensor, valid: Tensor | None) -> Tensor:
            return _mean_cross_entropy(self._call(views, images), labels, valid)

        each = vmap(grad_and_value(loss), in_dims=(0, 0, 0, None if batch.valid is None else 0))
        gradients, losses = each(self.layout.unflatten(params), batch.images, batch.labels, batch.valid)
        flat = torch.cat([gradients[layer.name].flatten(1) for layer in self.layout.layers], dim=1)
        return flat, losses  # [A, P], [A]


def _mean_cross_entropy(logits: Tensor, labels: Tensor, valid: Tensor | None) -> Tensor:
    if valid is None:
        return F.cross_entropy(logits, labels)
    each = F.cross_entropy(logits, labels, reduction="none")  # [B]
    return (each * valid).sum() / valid.sum()


def build_network(module: nn.Module, shape: tuple[int, ...], classes: int, masked: Sequence[str] = ("*",)) -> Network:
    """Lay the module out and try it on one image, so that a module that does not fit is an error before any work."""
    layout = find_layout(module, masked)
    module.requires_grad_(False).eval()
    try:
        with torch.no_grad():
            out = module(torch.zeros(1, *shape))
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"the model does not fit images of shape {_by(shape)}: {reason}") from error
    if tuple(out.shape) != (1, classes):
        raise ModelError(f"the model gives {_by(out.shape[1:])} outputs for an image; the data has {classes} classes")
    return Network(module, layout, plan_stack(module))


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
