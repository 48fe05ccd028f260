"""Messages as the codec takes them: which leaves they have, and one agent's row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from peermask.algorithms.contract import Payload
from peermask.errors import WireError
from peermask.wire import Schema
from peermask.wire.schema import MessageRow

_LeafSizes = tuple[tuple[str, torch.dtype, int], ...]  # of a message: name, type and entries of each leaf


def schema_of(payload: Payload, sizes: Sequence[int]) -> Schema:
    """Which leaves a message has, and how they are cut into layers."""
    return _schema(_leaf_sizes(payload), tuple(sizes))


def _leaf_sizes(payload: Payload) -> _LeafSizes:
    return tuple((name, leaf.dtype, leaf.numel() // len(leaf)) for name, leaf in payload.items())


@lru_cache(maxsize=16)
def _schema(shape: _LeafSizes, sizes: tuple[int, ...]) -> Schema:
    for name, dtype, _ in shape:
        if dtype not in (torch.bool, torch.float32):
            raise WireError(f"leaf {name!r} is {dtype}; allowed: bool, float32")
    masks = {name: size for name, dtype, size in shape if dtype == torch.bool}
    values = {name: size for name, dtype, size in shape if dtype != torch.bool}
    return Schema.of_sizes(masks, values, sizes)


def row_of(payload: Payload, agent: int) -> MessageRow:
    """One agent's message as the codec takes it."""
    return {name: leaf[agent].flatten().numpy() for name, leaf in payload.items()}
