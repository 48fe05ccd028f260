"""A network as a function of flat parameters: outputs and gradients for a stack of agents, each with its own.

An algorithm calls `gradient` and never learns how it is computed. A single agent is a plain autograd pass in
channels-last layout (the fastest on a CPU); several go through fused kernels where the network is a chain of common
layers, operation by operation where it can be traced into known ones, and are vectorised over the agent axis where it
is anything else. Recurrent layers and attention, which torch does not vectorise, are computed for one agent after
another.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional as F

from peermask.compute.cpu_module import CpuModule, channels_last, pool_first, use_products
from peermask.compute.stacked import StackedChain, plan_stack
from peermask.compute.traced import TracedStack, plan_traced
from peermask.errors import ModelError
from peermask.models.layout import Layout, find_layout
from peermask.models.outputs import Loss, cross_entropy

NOT_VECTORISED = (nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer)
_UNFIT = (RuntimeError, ValueError, TypeError, IndexError, AttributeError)  # of a module that is given other shapes


@dataclass(frozen=True)
class Batch:
    """One batch per agent; agents with fewer samples than the batch has places are padded."""

    inputs: Tensor  # [A, B, ...] float32, normalised, or int64 tokens
    targets: Tensor  # [A, B] int64, or [A, B, O] float32
    valid: Tensor | None = None  # [A, B] float32 1 at real samples; None where all are

    def row(self, agent: int) -> Batch:
        own = slice(agent, agent + 1)
        return Batch(self.inputs[own], self.targets[own], None if self.valid is None else self.valid[own])

    def half(self) -> Batch:
        """The first half of every agent's places, rounded up."""
        count = -(-self.targets.shape[1] // 2)
        rest = None if self.valid is None else self.valid[:, :count].contiguous()
        return Batch(self.inputs[:, :count].contiguous(), self.targets[:, :count].contiguous(), rest)


class _OwnCopies(threading.local):
    """A copy of the module for each thread: calling one replaces its parameters during the call."""

    general: nn.Module | None = None
    alone: CpuModule | None = None


@dataclass(frozen=True)
class Network:
    module: nn.Module
    layout: Layout
    stack: StackedChain | TracedStack | None = None  # how to compute many agents at once; None: vectorised
    loss: Loss = cross_entropy
    in_turn: bool = False  # whether many agents are computed one after another
    _copies: _OwnCopies = field(default_factory=_OwnCopies, init=False, repr=False, compare=False)

    def gradient(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """∂ℓ/∂v of the mean loss, and ℓ itself: [A, P], [A]."""
        if len(params) == 1 and (params.device.type == "cpu" or self.in_turn):
            return self._gradient_alone(params, batch)
        if self.in_turn:
            each = [self._gradient_alone(params[a : a + 1], batch.row(a)) for a in range(len(params))]
            return torch.cat([gradient for gradient, _ in each]), torch.cat([loss for _, loss in each])
        if self.stack is not None:
            return self._gradient_stacked(self.stack, params, batch)
        return self._gradient_vectorised(params, batch)

    def outputs(self, params: Tensor, inputs: Tensor) -> Tensor:  # [A, P], [A, B, ...] -> [A, B, O]
        with torch.no_grad():
            views = self.layout.unflatten(params)
            if self.in_turn or (len(params) == 1 and params.device.type == "cpu"):
                rows = [
                    self._call_alone({name: channels_last(view[a]) for name, view in views.items()}, own)
                    for a, own in enumerate(map(channels_last, inputs))
                ]
                return rows[0][None] if len(rows) == 1 else torch.stack(rows)
            return self.stack(views, inputs) if self.stack is not None else vmap(self._call)(views, inputs)

    def _call(self, params: dict[str, Tensor], inputs: Tensor) -> Tensor:
        if self._copies.general is None:
            self._copies.general = use_products(pool_first(copy.deepcopy(self.module)))
        result: Tensor = functional_call(self._copies.general, params, (inputs,))
        return result

    def _call_alone(self, params: dict[str, Tensor], inputs: Tensor) -> Tensor:
        if inputs.device.type != "cpu":
            return self._call(params, inputs)
        if self._copies.alone is None:
            self._copies.alone = CpuModule(self.module)
        return self._copies.alone(params, inputs)

    def _gradient_alone(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        # One leaf per layer: a single flat leaf would make autograd fill and add a whole vector for each.
        views = self.layout.unflatten(params.detach())
        leaves = {name: channels_last(view[0]).requires_grad_() for name, view in views.items()}
        with torch.enable_grad(), self._plain_recurrence():
            outputs = self._call_alone(leaves, channels_last(batch.inputs[0]))
            valid = None if batch.valid is None else batch.valid[0]
            loss = mean_loss(self.loss, outputs, batch.targets[0], valid)
            gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        return torch.cat([g.reshape(-1) for g in gradients])[None], loss.detach()[None]

    def _plain_recurrence(self) -> AbstractContextManager[None]:
        """Nvidia's recurrent kernels refuse gradients outside training mode, which nothing here is in."""
        return torch.backends.cudnn.flags(enabled=False) if self.in_turn else nullcontext()

    def _gradient_stacked(
        self, stack: StackedChain | TracedStack, params: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        leaves = {name: view.requires_grad_() for name, view in self.layout.unflatten(params.detach()).items()}
        with torch.enable_grad():
            outputs = stack(leaves, batch.inputs)  # [A, B, O]
            each = self.loss(outputs.flatten(0, 1), batch.targets.flatten(0, 1)).view(outputs.shape[:2])  # [A, B]
            losses = each.mean(1) if batch.valid is None else (each * batch.valid).sum(1) / batch.valid.sum(1)
        # Agents share nothing, so that each has its own.
        gradients = torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True)
        flat = torch.empty_like(params)  # [A, P]
        for place, own in zip(self.layout.unflatten(flat).values(), gradients, strict=True):
            place.copy_(own)  # in whatever order a kernel wrote it: joining copies would be a second pass
        return flat, losses.detach()

    def _gradient_vectorised(self, params: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        def loss(views: dict[str, Tensor], inputs: Tensor, targets: Tensor, valid: Tensor | None) -> Tensor:
            return mean_loss(self.loss, self._call(views, inputs), targets, valid)

        each = vmap(grad_and_value(loss), in_dims=(0, 0, 0, None if batch.valid is None else 0))
        gradients, losses = each(self.layout.unflatten(params), batch.inputs, batch.targets, batch.valid)
        flat = torch.cat([gradients[layer.name].flatten(1) for layer in self.layout.layers], dim=1)
        return flat, losses  # [A, P], [A]


def mean_loss(loss: Loss, outputs: Tensor, targets: Tensor, valid: Tensor | None) -> Tensor:
    """Mean loss over the samples of one agent, [B, ...], without padding."""
    if valid is None:
        if loss is cross_entropy:
            return F.cross_entropy(outputs, targets)  # which sums in another order
        return loss(outputs, targets).mean()
    return (loss(outputs, targets) * valid).sum() / valid.sum()


def build_network(
    module: nn.Module,
    shape: tuple[int, ...],
    outputs: int,
    masked: Sequence[str] = ("*",),
    loss: Loss = cross_entropy,
    *,
    tokens: bool = False,
) -> Network:
    """Lay the module out and try it on one input, so that a module that does not fit is an error before any work."""
    layout = find_layout(module, masked)
    module.requires_grad_(False).eval()
    what = "tokens" if tokens else "images" if len(shape) == 3 else "inputs"
    try:
        with torch.no_grad():
            out = module(blank(shape, tokens=tokens))
    except _UNFIT as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"the model does not fit {what} of shape {by(shape)}: {reason}") from error
    if not isinstance(out, Tensor):
        raise ModelError(f"the model gives a {type(out).__name__}, not a tensor; it must return only its outputs")
    one = "an image" if what == "images" else "an input"
    if tuple(out.shape) != (1, outputs):
        raise ModelError(
            f"the model gives {by(out.shape[1:]) or 'no'} outputs for {one}; the data has {outputs} classes"
        )
    in_turn = any(isinstance(child, NOT_VECTORISED) for child in module.modules())
    stack = None if in_turn else plan_stack(module) or plan_traced(module, _two_samples(module, shape, tokens=tokens))
    return Network(module, layout, stack, loss, in_turn)


def _two_samples(module: nn.Module, shape: Sequence[int], *, tokens: bool) -> Tensor:
    """Make two samples that differ, to try a module on."""
    draw = torch.Generator().manual_seed(0)
    if not tokens:
        return torch.randn(2, *shape, generator=draw)
    sizes = [child.num_embeddings for child in module.modules() if isinstance(child, nn.Embedding | nn.EmbeddingBag)]
    return torch.randint(0, min(sizes, default=1), (2, *shape), generator=draw)


def blank(shape: Sequence[int], *, tokens: bool, count: int = 1) -> Tensor:
    """Inputs that are all zero, to try a module on."""
    return torch.zeros(count, *shape, dtype=torch.int64 if tokens else torch.float32)


def by(shape: Sequence[int]) -> str:
    """`3x32x32`"""
    return "x".join(map(str, shape))
