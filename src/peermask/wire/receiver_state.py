"""State of the receivers of all agents' messages after a round, which the next messages are coded against.

On a CPU each agent has a history of the codec's own; on a GPU all are tensors, since nothing may leave it in a round.
Shapes: N agents, L layers, S = 256 states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from peermask.kernels import by_kernels
from peermask.kernels.blocks import BLOCK, block_table, in_lines, spans_of
from peermask.wire import History, Leaf, Schema
from peermask.wire.history import CLASSES, FIRST, STATES, Contexts
from peermask.wire.schema import Payload, row_of

_STATES, _SUMS, _FRAMES = ".states", ".sums", ".frames"  # of a mask leaf, after its name


@dataclass(frozen=True)
class ReceiverRows:
    """Histories on a CPU, one for each agent."""

    histories: tuple[History, ...]  # N

    def tensors(self) -> Payload:
        first = self.histories[0]
        saved = {name: _stack_rows(h.payload[name] for h in self.histories) for name in first.payload}
        for name in first.contexts:
            each = [history.contexts[name] for history in self.histories]
            saved[name + _STATES] = _stack_rows(contexts.states for contexts in each)
            saved[name + _SUMS] = _stack_rows(np.stack([contexts.seen, contexts.flips], 1) for contexts in each)
            saved[name + _FRAMES] = torch.tensor([contexts.frames for contexts in each])
        return saved


@dataclass(frozen=True)
class ReceiverTensors:
    """Tensors on a GPU, with a row for each agent."""

    values: Payload  # leaves that are no masks, as they were sent
    masks: Mapping[str, ReceiverMasks]  # with what was sent in bit 0 of the states

    def after(self, payload: Payload) -> ReceiverTensors:
        masks = {
            name: receiver_masks_after_triton(payload[name].flatten(1), before) for name, before in self.masks.items()
        }
        return ReceiverTensors(_values(payload, masks), masks)

    def tensors(self) -> Payload:
        saved = dict(self.values)
        for name, mask in self.masks.items():
            saved[name] = (mask.states & 1).bool()
            saved[name + _STATES], saved[name + _SUMS] = mask.states, mask.sums
            saved[name + _FRAMES] = mask.frames.long()
        return saved

    @classmethod
    def join(cls, parts: Sequence[ReceiverTensors]) -> ReceiverTensors:
        """The agents of all parts, one after another."""
        values = {name: torch.cat([part.values[name] for part in parts]) for name in parts[0].values}
        return cls(values, {name: join_receiver_masks([part.masks[name] for part in parts]) for name in parts[0].masks})

    def apart(self) -> list[ReceiverTensors]:
        """Each agent in its own memory, so that keeping one does not keep the others."""
        values = {name: [row.clone() for row in leaf.split(1)] for name, leaf in self.values.items()}
        masks = {name: split_rows(mask) for name, mask in self.masks.items()}
        count = len(next(iter((*values.values(), *masks.values()))))
        return [
            ReceiverTensors(
                {name: rows[i] for name, rows in values.items()}, {name: rows[i] for name, rows in masks.items()}
            )
            for i in range(count)
        ]


ReceiverState = ReceiverRows | ReceiverTensors


def is_counted_by_kernels(payload: Payload) -> bool:
    """Whether a GPU's kernels count these messages; values in half precision are counted on the CPU."""
    return by_kernels(next(iter(payload.values()))) and all(leaf.dtype != torch.float16 for leaf in payload.values())


def to_counting_device(payload: Payload) -> Payload:
    """Messages on the device that counts them."""
    return payload if is_counted_by_kernels(payload) else {name: rows.cpu() for name, rows in payload.items()}


def first_message(payload: Payload, schema: Schema) -> ReceiverState:
    """Return the state after keyframes of all agents, or openings."""
    if is_counted_by_kernels(payload):
        cuts = {leaf.name: leaf.layers for leaf in schema.leaves if leaf.is_mask}
        masks = {name: first_receiver_masks(payload[name].flatten(1), cut) for name, cut in cuts.items()}
        return ReceiverTensors(_values(payload, masks), masks)
    rows = range(len(next(iter(payload.values()))))
    return ReceiverRows(tuple(History.begin(row_of(payload, agent), schema) for agent in rows))


def restore_receiver_state(saved: Mapping[str, Tensor], schema: Schema, device: torch.device) -> ReceiverState:
    """Restore a state from its `tensors`."""
    masks = [leaf for leaf in schema.leaves if leaf.is_mask]
    payload = to_counting_device({leaf.name: saved[leaf.name].to(device) for leaf in schema.leaves})
    if is_counted_by_kernels(payload):
        restored = {
            leaf.name: restore_receiver_masks(
                saved[leaf.name + _STATES].to(device),
                saved[leaf.name + _SUMS].to(device),
                saved[leaf.name + _FRAMES].to(device),
                leaf.layers,
            )
            for leaf in masks
        }
        return ReceiverTensors(_values(payload, restored), restored)
    agents = range(len(next(iter(payload.values()))))
    return ReceiverRows(
        tuple(
            History(row_of(payload, agent), {leaf.name: _contexts(saved, leaf, agent) for leaf in masks})
            for agent in agents
        )
    )


def _values(payload: Payload, masks: Mapping[str, ReceiverMasks]) -> Payload:
    """Copies: the next round may be computed in the memory of this one's messages."""
    return {name: leaf.clone() for name, leaf in payload.items() if name not in masks}


def _contexts(saved: Mapping[str, Tensor], leaf: Leaf, agent: int) -> Contexts:
    sums = saved[leaf.name + _SUMS][agent].numpy()  # [L, 2, S]
    states, frames = saved[leaf.name + _STATES][agent].numpy(), int(saved[leaf.name + _FRAMES][agent])
    return Contexts.from_saved(states, sums[:, 0], sums[:, 1], frames, leaf.layers)


def empty_receiver_state(schema: Schema) -> Payload:
    """Return the `tensors` of no agents."""
    saved = {}
    for leaf in schema.leaves:
        saved[leaf.name] = torch.zeros(0, leaf.size, dtype=getattr(torch, leaf.dtype))
        if leaf.is_mask:
            saved[leaf.name + _STATES] = torch.zeros(0, leaf.size, dtype=torch.uint8)
            saved[leaf.name + _SUMS] = torch.zeros(0, len(leaf.layers), 2, STATES, dtype=torch.int64)
            saved[leaf.name + _FRAMES] = torch.zeros(0, dtype=torch.int64)
    return saved


def _stack_rows(rows: Iterable[np.typing.NDArray[np.generic]]) -> Tensor:
    return torch.from_numpy(np.stack(list(rows)))


_BLOCKS_AT_ONCE = 64  # whose classes are added up
_CLASS_BLOCKS = 256  # of a class


@dataclass(frozen=True)
class ReceiverMasks:
    """One mask leaf of every agent after a frame, as its receivers know it; each may be at another frame."""

    layers: tuple[int, ...]
    states: Tensor  # [N, P] uint8
    weights: Tensor  # [N, L, S] int32: how many are in each state
    sums: Tensor  # [N, L, 2, S] int64: weights and flips of the frames before, fading
    frames: Tensor  # [N] int32: since the keyframe

    @property
    def classes(self) -> Tensor:
        """[N, L, S] uint8"""
        return self._classes[0]

    @property
    def sizes(self) -> Tensor:
        """[N, C] int32: weights of each class."""
        return self._classes[1]

    @cached_property
    def _classes(self) -> tuple[Tensor, Tensor]:
        from peermask.kernels import contexts_triton as kernels

        agents, layers, device = len(self.states), len(self.layers), self.states.device
        classes = torch.empty(agents, layers, STATES, dtype=torch.uint8, device=device)
        sizes = torch.empty(agents, CLASSES, dtype=torch.int32, device=device)
        kernels.classes_kernel[(agents,)](self.weights, self.sums, self.frames, classes, sizes, layers)
        return classes, sizes


def first_receiver_masks(mask: Tensor, layers: tuple[int, ...]) -> ReceiverMasks:
    """Return the state after keyframes; `mask` is [N, P] bool."""
    agents, device = len(mask), mask.device
    weights = torch.zeros(agents, len(layers), STATES, dtype=torch.int32, device=device)
    ones = torch.stack([mask[:, start:end].sum(1) for start, end in spans_of(layers)], 1)  # [N, L]
    weights[:, :, FIRST + 1] = ones.int()
    weights[:, :, FIRST] = torch.tensor(layers, device=device, dtype=torch.int32) - ones.int()
    sums = torch.zeros(agents, len(layers), 2, STATES, dtype=torch.int64, device=device)
    frames = torch.zeros(agents, dtype=torch.int32, device=device)
    return ReceiverMasks(layers, mask.contiguous().view(torch.uint8) + FIRST, weights, sums, frames)


def restore_receiver_masks(states: Tensor, sums: Tensor, frames: Tensor, layers: tuple[int, ...]) -> ReceiverMasks:
    """Restore the state from the tensors of a checkpoint."""
    index = STATES * torch.arange(len(states), device=states.device)[:, None] + states  # [N, P]
    counts = [
        torch.bincount(index[:, start:end].flatten(), minlength=STATES * len(states)).view(-1, STATES)
        for start, end in spans_of(layers)
    ]
    return ReceiverMasks(layers, states, torch.stack(counts, 1).int(), sums, frames.int())


def join_receiver_masks(parts: Sequence[ReceiverMasks]) -> ReceiverMasks:
    """The agents of all parts, one after another."""
    each = [(part.states, part.weights, part.sums, part.frames) for part in parts]
    return ReceiverMasks(parts[0].layers, *map(torch.cat, zip(*each, strict=True)))


def split_rows(known: ReceiverMasks) -> list[ReceiverMasks]:
    """Each agent in its own memory."""
    tensors = (known.states, known.weights, known.sums, known.frames)
    rows = zip(*([row.clone() for row in tensor.split(1)] for tensor in tensors), strict=True)
    return [ReceiverMasks(known.layers, *row) for row in rows]


def flips_size_triton(mask: Tensor, known: ReceiverMasks, block: int = BLOCK) -> Tensor:
    """Entries in bytes and bits after them [N, C, 2] int32, of every class of every agent's flips."""
    from peermask.kernels import contexts_triton as kernels

    row, blocks = as_integers(mask), block_table(known.layers, mask.device, block)
    agents, count, weights, layers = len(row), len(blocks), row.shape[1], len(known.layers)
    inside = torch.empty(agents, count, CLASSES, 2, dtype=torch.int32, device=mask.device)
    flipped = torch.empty(agents, CLASSES, dtype=torch.int32, device=mask.device)
    found = torch.empty(agents, count, CLASSES, 3, dtype=torch.int32, device=mask.device)
    lengths = torch.empty(agents, CLASSES, 2, dtype=torch.int32, device=mask.device)
    lines = in_lines(known.layers, row.stride(0))
    grid, sizes = (count, agents), (row.stride(0), weights, layers, count)
    kernels.inside_kernel[grid](row, known.states, known.classes, blocks, inside, *sizes, lines, block, num_warps=8)
    kernels.before_kernel[(agents,)](inside, flipped, count, _BLOCKS_AT_ONCE)
    kernels.class_gaps_kernel[grid](
        row, known.states, known.classes, known.sizes, flipped, blocks, inside, found, *sizes, lines, block, num_warps=8
    )
    kernels.class_kernel[(CLASSES, agents)](known.sizes, flipped, found, lengths, count, _CLASS_BLOCKS)
    return lengths


def receiver_masks_after_triton(mask: Tensor, known: ReceiverMasks, block: int = BLOCK) -> ReceiverMasks:
    """Return the state after `mask` [N, P] was sent."""
    from peermask.kernels import contexts_triton as kernels

    row, blocks = as_integers(mask), block_table(known.layers, mask.device, block)
    agents, layers = len(row), len(known.layers)
    states, sums, frames = (torch.empty_like(each) for each in (known.states, known.sums, known.frames))
    flips, weights = torch.zeros(2, agents, layers, STATES, dtype=torch.int32, device=mask.device)
    kernels.states_kernel[(len(blocks), agents)](
        row, known.states, known.frames, states, blocks, flips, row.stride(0), row.shape[1], layers,
        in_lines(known.layers, row.stride(0)), block, num_warps=8,
    )  # fmt: skip
    kernels.sums_kernel[(agents * layers,)](
        known.weights, flips, known.sums, known.frames, weights, sums, frames, layers
    )
    return ReceiverMasks(known.layers, states, weights, sums, frames)


def as_integers(leaf: Tensor) -> Tensor:
    """The same bits, each row in one piece: an entry is in the set where they are not 0, so that -0.0 counts."""
    rows = leaf if leaf.stride(1) == 1 else leaf.contiguous()
    return rows.view(torch.uint8 if leaf.dtype == torch.bool else torch.int32)
