"""One leaf of a frame: a kind byte and what that kind needs.

    0 keyframe      the mask as a set
    1 delta         the flips against the mask sent last as a set, cut into classes by how likely they were
    2 dense         values x P, little-endian: float32, or float16 where the schema says so
    3 sparse        the support as a set, then values at its positions
    4 sparse delta  the flips of the support against the one sent last, then values at its positions
    5 on a mask     the index of a mask leaf of this frame, then values at that mask's positions
The sender takes the smallest; on a tie the lowest number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from peermask.errors import WireError
from peermask.wire.bits import Cursor
from peermask.wire.history import Contexts, History, decode_flips, flips_between, plan_flips
from peermask.wire.schema import Array, Leaf
from peermask.wire.sets import Mask, SetPlan, decode_set, encode_set, plan_set, plan_set_within

Floats: TypeAlias = NDArray[np.float32] | NDArray[np.float16]


class Kind(IntEnum):
    KEYFRAME = 0
    DELTA = 1
    DENSE = 2
    SPARSE = 3
    SPARSE_DELTA = 4
    ON_MASK = 5


NEEDS_HISTORY = (Kind.DELTA, Kind.SPARSE_DELTA)


@dataclass(frozen=True)
class LeafPlan:
    """Plan of how one leaf will be written."""

    kind: Kind
    sizes: tuple[int, ...]  # of the layers or classes that `members` is cut into
    members: SetPlan | None = None
    mask_index: int | None = None
    where: Mask | None = None  # [P] positions whose values are sent
    values: Floats | None = None  # [P]
    values_bytes: int = 0

    @property
    def size(self) -> int:
        positions = self.members.size if self.members else 0
        return 1 + positions + (self.mask_index is not None) + self.values_bytes

    def encode(self) -> bytes:
        parts = [bytes([self.kind])]
        if self.members is not None:
            parts.append(encode_set(self.members, self.sizes))
        if self.mask_index is not None:
            parts.append(bytes([self.mask_index]))
        if self.values is not None:
            sent = self.values if self.where is None else self.values[self.where]
            parts.append(sent.astype(sent.dtype.newbyteorder("<"), copy=False).tobytes())
        return b"".join(parts)


@dataclass(frozen=True)
class MaskPlan:
    """A set of positions as a whole or as what changed, whichever is smaller."""

    is_delta: bool
    members: SetPlan
    sizes: tuple[int, ...]  # of the layers or classes it is cut into


def plan_mask(mask: Mask, layers: Sequence[int], base: Mask | None, contexts: Contexts | None) -> MaskPlan:
    """A mask leaf; `base` is the mask sent last, of which `contexts` tell how likely each bit is to flip."""
    if base is None or contexts is None:
        return MaskPlan(False, plan_set(mask, layers), tuple(layers))
    sizes = tuple(int(contexts.sizes[c]) for c in contexts.used)
    return _smaller(mask, layers, plan_flips(contexts, flips_between(base, mask)), sizes)


def plan_support(where: Mask, layers: Sequence[int], base: Mask | None) -> MaskPlan:
    """Plan the positions of values; flips are coded by layer."""
    if base is None:
        return MaskPlan(False, plan_set(where, layers), tuple(layers))
    return _smaller(where, layers, plan_set(where ^ base, layers), tuple(layers))


def _smaller(mask: Mask, layers: Sequence[int], delta: SetPlan, sizes: tuple[int, ...]) -> MaskPlan:
    """Return the smaller plan; on a tie the keyframe."""
    keyframe = plan_set_within(mask, layers, delta.size)
    return MaskPlan(True, delta, sizes) if keyframe is None else MaskPlan(False, keyframe, tuple(layers))


def support(values: Floats) -> Mask:
    """Mark values other than +0.0; -0.0 counts, or its sign would be lost."""
    where: Mask = values.view(f"u{values.itemsize}") != 0
    return where  # [P]


def check_finite(values: Floats, leaf: Leaf) -> None:
    if not np.isfinite(values).all():
        limit = ", or beyond 65,504, where float16 ends" if leaf.is_half else ""
        raise WireError(f"leaf {leaf.name!r} holds a value that is NaN or infinite{limit}")


def plan_leaf(leaf: Leaf, array: Array, history: History | None, masks: Mapping[int, Mask]) -> LeafPlan:
    """The smallest way to write `array`; `masks` are the mask leaves of the same frame by index."""
    base = None if history is None else history.payload[leaf.name]
    if leaf.is_mask:
        mask = plan_mask(array, leaf.layers, base, None if history is None else history.contexts[leaf.name])
        return LeafPlan(Kind.DELTA if mask.is_delta else Kind.KEYFRAME, mask.sizes, mask.members)
    check_finite(array, leaf)
    where = support(array)  # [P]
    sent = leaf.value_bytes * int(np.count_nonzero(where))
    dense = LeafPlan(Kind.DENSE, leaf.layers, values=array, values_bytes=leaf.value_bytes * array.size)
    if sent == dense.values_bytes:
        return dense  # without a zero nothing is shorter
    positions = plan_support(where, leaf.layers, None if base is None else support(base))
    sparse = Kind.SPARSE_DELTA if positions.is_delta else Kind.SPARSE
    plans = [dense, LeafPlan(sparse, leaf.layers, positions.members, where=where, values=array, values_bytes=sent)]
    for index, mask_leaf in masks.items():
        if mask_leaf.size == array.size and not (where & ~mask_leaf).any():
            kept = leaf.value_bytes * int(np.count_nonzero(mask_leaf))
            plans.append(
                LeafPlan(Kind.ON_MASK, leaf.layers, mask_index=index, where=mask_leaf, values=array, values_bytes=kept)
            )
    return min(plans, key=lambda plan: plan.size)


def decode_leaf(cursor: Cursor, leaf: Leaf, history: History | None, masks: Mapping[int, Mask]) -> Array:
    """The leaf, [P]."""
    number = cursor.byte()
    if number not in list(Kind) or (number <= Kind.DELTA) != leaf.is_mask:
        raise WireError(f"leaf {leaf.name!r} has kind {number}, which it cannot have")
    kind = Kind(number)
    if kind in NEEDS_HISTORY and history is None:
        raise WireError(f"leaf {leaf.name!r} is a delta in a frame that names no history")
    if kind is Kind.ON_MASK:
        index = cursor.byte()
        if index not in masks or masks[index].size != leaf.size:
            raise WireError(f"leaf {leaf.name!r} refers to mask leaf {index}, which is missing or of another size")
        return decode_values(cursor, leaf, masks[index])
    if kind is Kind.DENSE:
        return decode_values(cursor, leaf, None)
    if kind is Kind.DELTA and history is not None:
        mask: Mask = history.payload[leaf.name].copy()
        mask[decode_flips(cursor, history.contexts[leaf.name])] ^= True
        return mask
    members = decode_set(cursor, leaf.layers)  # [P]
    if kind is Kind.SPARSE_DELTA and history is not None:
        members ^= support(history.payload[leaf.name])
    return members if leaf.is_mask else decode_values(cursor, leaf, members)


def decode_values(cursor: Cursor, leaf: Leaf, where: Mask | None) -> Floats:
    count = leaf.size if where is None else int(np.count_nonzero(where))
    sent = np.frombuffer(cursor.take_bytes(leaf.value_bytes * count), f"<f{leaf.value_bytes}")  # [count]
    check_finite(sent, leaf)
    values: Floats = np.zeros(leaf.size, leaf.dtype)
    values[slice(None) if where is None else where] = sent
    return values  # [P]
