"""Cost of a message on a link: as the codec sends it, and as papers count it.

An agent sends the same message over each of its links, so a cost is per directed link. Every receiver has heard all
that the sender sent before, so what the codec sends is a delta against that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import log
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from peermask.errors import DivergedError, WireError
from peermask.kernels.blocks import BLOCK, in_lines, leaf_tables
from peermask.wire import History, Schema, bitmap_size, frame_size
from peermask.wire.frame import FRAME_BYTES
from peermask.wire.receiver_state import (
    ReceiverRows,
    ReceiverState,
    ReceiverTensors,
    as_integers,
    first_message,
    flips_size_triton,
    is_counted_by_kernels,
    to_counting_device,
)
from peermask.wire.schema import MessageRow, Payload, row_of
from peermask.wire.sets import slices

T = TypeVar("T")


class Spread(Protocol):
    """Applies a function to every chunk, in the way that is best for the machine."""

    def __call__(self, function: Callable[..., T], /, *columns: Iterable[Any]) -> list[T]: ...


def in_turn(function: Callable[..., T], /, *columns: Iterable[Any]) -> list[T]:
    """Apply a function to one chunk after another."""
    return list(map(function, *columns))


@dataclass(frozen=True)
class Cost:
    """One message of each of N agents, per directed link."""

    paper_bits: Tensor  # [N]: 1 per mask bit, 32 per real value (16 in half precision)
    ones_bits: Tensor  # [N]: 1 per mask *one*, 32 per non-zero value, as the authors' code counts; not decodable
    bitmap_bytes: Tensor  # [N]: a bitmap, or all values, with framing
    entropy_bytes: Tensor  # [N]: no code for masks of this density can do better without knowing the one before
    coded_bytes: Tensor  # [N]: what the codec sends
    kind: Tensor  # [N]: which of `KINDS` that is


KINDS = ("keyframe", "delta", "both", "")  # receivers may get different ones, or there are none
COST_COLUMNS = tuple(field.name for field in fields(Cost))


def kinds(frames: Tensor, deltas: Tensor) -> Tensor:
    """Places in `KINDS` of what each agent sent, by how many frames and deltas that was, [N]."""
    return torch.where(frames == 0, 3, torch.where(deltas == 0, 0, torch.where(deltas == frames, 1, 2)))


def message_cost(
    payload: Payload, state: ReceiverState | None, sizes: Sequence[int], spread: Spread = in_turn, first: int = 0
) -> tuple[Cost, ReceiverState]:
    """The cost of one round's messages [N, ...], and the receivers' state after them; `state` is that before, if any.
    The agents are numbered from `first`."""
    payload = to_counting_device(payload)
    leaf = next(iter(payload.values()))
    paper, bitmap = _always(Schema.of_rows(payload, sizes), len(leaf), leaf.device)
    if is_counted_by_kernels(payload):
        assert not isinstance(state, ReceiverRows)
        (ones, entropy, coded, kind), state = measure_by_kernels(payload, state, sizes)
    else:
        assert not isinstance(state, ReceiverTensors)
        (ones, entropy, coded, kind), state = _measure_by_rows(payload, state, sizes, spread, first)
    return Cost(paper, ones, bitmap, entropy, coded, kind), state


@lru_cache(maxsize=16)
def _always(schema: Schema, agents: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Costs that are the same in every round, [N] each: bits as papers count, and bytes of a bitmap."""
    paper = sum(leaf.size * (1 if leaf.is_mask else 8 * leaf.value_bytes) for leaf in schema.leaves)
    return torch.full((agents,), paper, device=device), torch.full((agents,), bitmap_size(schema), device=device)


def measure_by_kernels(
    payload: Payload, state: ReceiverTensors | None, sizes: Sequence[int]
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], ReceiverTensors]:
    """Bits of ones, bytes of the bound, bytes of the frame and its kind of every agent, [N] each; nothing leaves the
    GPU."""
    rows, cuts = _leaves_for_kernels(payload, sizes)
    if state is None:
        first = first_message(payload, Schema.of_rows(payload, sizes))
        assert isinstance(first, ReceiverTensors)
        return count_frames_triton(list(rows.values()), None, cuts), first
    # Flips of masks are counted by class, so the masks before are not used here.
    bases = [state.values[name].flatten(1) if name in state.values else row for name, row in rows.items()]
    flips = {i: flips_size_triton(rows[name], state.masks[name]) for i, name in enumerate(rows) if name in state.masks}
    return count_frames_triton(list(rows.values()), bases, cuts, flips), state.after(payload)


def _leaves_for_kernels(payload: Payload, sizes: Sequence[int]) -> tuple[dict[str, Tensor], list[tuple[int, ...]]]:
    """Return leaves as rows [N, P], and the layers of each."""
    rows, whole = {name: leaf.flatten(1) for name, leaf in payload.items()}, tuple(sizes)
    return rows, [whole if row.shape[1] == sum(whole) else (row.shape[1],) for row in rows.values()]


def _measure_by_rows(
    payload: Payload, state: ReceiverRows | None, sizes: Sequence[int], spread: Spread, first: int
) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], ReceiverState]:
    """The same on the cores of a CPU, frames by the codec's own plan. An agent's row is counted and planned while it
    is in the cache."""
    schema, layers = Schema.of_rows(payload, sizes), _cuts(payload, sizes)

    def measured(agent: int) -> tuple[list[list[int]], int, bool, History]:
        row, history = row_of(payload, agent), None if state is None else state.histories[agent]
        return _counts(row, layers), *code_row(row, schema, history, first + agent)

    agents = range(len(next(iter(payload.values()))))
    counts, coded, kind, histories = zip(*spread(measured, agents), strict=True)
    by_leaf = [torch.tensor(by_agent) for by_agent in zip(*counts, strict=True)]
    measures = (*_by_counts(payload, by_leaf, sizes), torch.tensor(coded), torch.tensor(kind, dtype=torch.int64))
    return measures, ReceiverRows(tuple(histories))


def code_row(row: MessageRow, schema: Schema, history: History | None, agent: int) -> tuple[int, bool, History]:
    """Bytes of an agent's frame to receivers with this history, whether it is a delta, and what they know then."""
    try:
        size, is_delta = frame_size(row, schema, history)
    except WireError as error:
        raise DivergedError(f"agent {agent} cannot send its message: {error}; try a smaller algorithm.lr") from error
    after = History.begin(row, schema) if history is None else history.after(row)
    return size, is_delta, after


def message_measures(payload: Payload, sizes: Sequence[int], spread: Spread) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Costs whatever receivers know: paper_bits, ones_bits, bitmap_bytes and entropy_bytes, [N] each."""
    payload = to_counting_device(payload)
    leaf, layers = next(iter(payload.values())), _cuts(payload, sizes)
    paper, bitmap = _always(Schema.of_rows(payload, sizes), len(leaf), leaf.device)
    if is_counted_by_kernels(payload):
        rows, cuts = _leaves_for_kernels(payload, sizes)
        ones, entropy, _, _ = count_frames_triton(list(rows.values()), None, cuts)
        return paper, ones, bitmap, entropy
    counts = spread(lambda agent: _counts(row_of(payload, agent), layers), range(len(leaf)))
    ones, entropy = _by_counts(payload, [torch.tensor(each) for each in zip(*counts, strict=True)], sizes)
    return paper, ones, bitmap, entropy


def _counts(row: MessageRow, layers: Sequence[Sequence[int]]) -> list[list[int]]:
    """Count the entries of each layer and leaf that are not zero.

    numpy counts bytes far faster than floats, and faster than torch, which widens each to eight bytes.
    """
    filled = (leaf if leaf.dtype == np.bool_ else leaf != 0 for leaf in row.values())
    each = zip(filled, layers, strict=True)
    return [[int(np.count_nonzero(leaf[part])) for part in slices(cut)] for leaf, cut in each]


def _cuts(payload: Payload, sizes: Sequence[int]) -> list[Sequence[int]]:
    """Return the layers in which ones are counted: those of a mask; the density of values is one number."""
    return [sizes if leaf.dtype == torch.bool else (leaf[0].numel(),) for leaf in payload.values()]


def _by_counts(payload: Payload, counts: Sequence[Tensor], sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Bits of ones and bytes of the bound, [N] each, from what is not zero in each leaf, [N, L]."""
    ones = torch.zeros(len(counts[0]), dtype=torch.int64, device=counts[0].device)
    entropy = torch.zeros(len(counts[0]), dtype=torch.float64, device=counts[0].device)
    for leaf, by_layer, cut in zip(payload.values(), counts, _cuts(payload, sizes), strict=True):
        bits = 1 if leaf.dtype == torch.bool else 8 * leaf.element_size()
        filled = by_layer.sum(1)  # [N]
        ones += bits * filled
        entropy += entropy_bits(by_layer, cut) / 8 + (bits // 8 * filled if bits > 1 else 0)
    return ones, entropy


def entropy_bits(ones: Tensor, sizes: Sequence[int]) -> Tensor:
    """Σ_l n_l H2(k_l / n_l)."""
    total = _on_device(tuple(sizes), ones.device)  # [L]
    p = ones.double() / total
    each = -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p)) / log(2.0)
    return (each * total).sum(1)  # [N]


@lru_cache(maxsize=16)
def _on_device(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """Kept there: a copy from the host would make the round wait."""
    return torch.tensor(sizes, dtype=torch.float64, device=device)


# On a GPU, by kernels

_BLOCKS_AT_ONCE = 256  # of a layer
_LAYERS_AT_ONCE = 64  # of a leaf


def count_frames_triton(
    rows: Sequence[Tensor],
    bases: Sequence[Tensor] | None,
    layers: Sequence[tuple[int, ...]],
    flips: Mapping[int, Tensor] | None = None,
    block: int = BLOCK,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Count every agent's message: bits of ones and values, bytes of the entropy bound, bytes of its frame, and whether
    that is a delta, [N] each.

    `rows` are its leaves [N, P], bool or float32, each with its layers; `bases` those that receivers have; `flips` how
    long the flips of each mask leaf are by class, from `flips_size_triton`.
    """
    from peermask.kernels import gaps_triton as kernels

    device, agents, leaves = rows[0].device, len(rows[0]), len(rows)
    is_mask = [leaf.dtype == torch.bool for leaf in rows]
    tables = leaf_tables(tuple(zip(is_mask, layers, strict=True)), block, device)
    members = [as_integers(leaf) for leaf in rows]
    held = members if bases is None else [as_integers(leaf) for leaf in bases]
    sets, total_layers, total_blocks = (
        1 if bases is None or all(is_mask) else 2,
        len(tables.layers),
        tables.first_blocks[-1],
    )
    width = 3 * total_layers + leaves * leaves
    counts = torch.zeros(agents, width, dtype=torch.int32, device=device)
    found = torch.empty(agents, total_blocks, sets, 3, dtype=torch.int32, device=device)
    lengths = torch.empty(agents, total_layers, sets, 2, dtype=torch.int32, device=device)
    whole = torch.empty(3, agents, dtype=torch.int64, device=device)
    entropy = torch.empty(agents, dtype=torch.float64, device=device)
    for leaf, (row, base, blocks) in enumerate(zip(members, held, tables.blocks, strict=True)):
        grid, first_layer = (len(blocks), agents), tables.first_layers[leaf]
        strides = (row.stride(0), base.stride(0))
        lines = in_lines(layers[leaf], *strides)
        kernels.count_kernel[grid](
            row, base, blocks, counts, *strides, first_layer, width, not is_mask[leaf], sets, lines, block, num_warps=8
        )
        kernels.gaps_kernel[grid](
            row, base, blocks, tables.layers, counts, found, *strides, first_layer, tables.first_blocks[leaf], width,
            total_blocks, sets, lines, block, num_warps=8,
        )  # fmt: skip
        for other, mask in enumerate(members):
            if is_mask[other] and not is_mask[leaf] and mask.shape == row.shape:
                place = 3 * total_layers + leaf * leaves + other
                kernels.outside_kernel[grid](
                    row, mask, blocks, counts, row.stride(0), mask.stride(0), place, width,
                    lines and in_lines((), mask.stride(0)), block, num_warps=8,
                )  # fmt: skip
    kernels.layer_kernel[(total_layers, agents)](
        tables.layers, counts, found, lengths, total_layers, width, total_blocks, sets, _BLOCKS_AT_ONCE
    )
    by_class = lengths if not flips else _by_leaf(flips, leaves)
    kernels.frame_kernel[(agents,)](
        tables.leaves, tables.layers, counts, lengths, by_class, whole, entropy, leaves, total_layers, width,
        FRAME_BYTES, sets, bool(flips), _LAYERS_AT_ONCE, num_warps=2,
    )  # fmt: skip
    return whole[0], entropy, whole[1], whole[2]


def _by_leaf(flips: Mapping[int, Tensor], leaves: int) -> Tensor:
    """[N, LEAVES, C, 2]; of leaves without a mask anything."""
    any_of_them = next(iter(flips.values()))
    return torch.stack([flips.get(leaf, any_of_them) for leaf in range(leaves)], 1)
