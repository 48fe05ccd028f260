"""What the receivers of all agents' messages know after a round, which the next messages are coded against.

On a CPU each agent has a history of the codec's own; on a GPU all are tensors, since nothing may leave it in a round.
Shapes: N agents, L layers, S = 256 states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from peermask.kernels import by_kernels
from peermask.wire import History, Leaf, Schema
from peermask.wire.history import STATES, Contexts
from peermask.wire.receiver_masks import (
    ReceiverMasks,
    first_receiver_masks,
    receiver_masks_after_triton,
    restore_receiver_masks,
    split_rows,
    stacked,
)
from peermask.wire.schema import Payload, row_of

_STATES, _SUMS, _FRAMES = ".states", ".sums", ".frames"  # of a mask leaf, after its name


@dataclass(frozen=True)
class ReceiverRows:
    """Histories on a CPU, one for each agent."""

    histories: tuple[History, ...]  # N

    def tensors(self) -> Payload:
        first = self.histories[0]
        saved = {name: _stacked(h.payload[name] for h in self.histories) for name in first.payload}
        for name in first.contexts:
            each = [history.contexts[name] for history in self.histories]
            saved[name + _STATES] = _stacked(contexts.states for contexts in each)
            saved[name + _SUMS] = _stacked(np.stack([contexts.seen, contexts.flips], 1) for contexts in each)
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
    def stacked(cls, parts: Sequence[ReceiverTensors]) -> ReceiverTensors:
        """The agents of all parts, one after another."""
        values = {name: torch.cat([part.values[name] for part in parts]) for name in parts[0].values}
        return cls(values, {name: stacked([part.masks[name] for part in parts]) for name in parts[0].masks})

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


def counted_by_kernels(payload: Payload) -> bool:
    """Whether a GPU's kernels count these messages; values in half precision are counted on the CPU."""
    return by_kernels(next(iter(payload.values()))) and all(leaf.dtype != torch.float16 for leaf in payload.values())


def where_counted(payload: Payload) -> Payload:
    """Messages on the device that counts them."""
    return payload if counted_by_kernels(payload) else {name: rows.cpu() for name, rows in payload.items()}


def first_message(payload: Payload, schema: Schema) -> ReceiverState:
    """Return the state after keyframes of all agents, or openings."""
    if counted_by_kernels(payload):
        cuts = {leaf.name: leaf.layers for leaf in schema.leaves if leaf.is_mask}
        masks = {name: first_receiver_masks(payload[name].flatten(1), cut) for name, cut in cuts.items()}
        return ReceiverTensors(_values(payload, masks), masks)
    rows = range(len(next(iter(payload.values()))))
    return ReceiverRows(tuple(History.begin(row_of(payload, agent), schema) for agent in rows))


def restore_receiver_state(saved: Mapping[str, Tensor], schema: Schema, device: torch.device) -> ReceiverState:
    """Restore a state from its `tensors`."""
    masks = [leaf for leaf in schema.leaves if leaf.is_mask]
    payload = where_counted({leaf.name: saved[leaf.name].to(device) for leaf in schema.leaves})
    if counted_by_kernels(payload):
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


def _stacked(rows: Iterable[np.typing.NDArray[np.generic]]) -> Tensor:
    return torch.from_numpy(np.stack(list(rows)))
