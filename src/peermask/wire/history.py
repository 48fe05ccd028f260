"""History of a sender at both ends of a link, which the next frame builds on: its last message, and how likely each
weight of a mask is to flip, from the messages before, in one byte of state a weight.

    bit 0     the mask bit sent last
    bits 1-3  age: 0 flipped in the last frame, 1 one and 2 two frames before, then ever longer; 7 at first
    bits 4-7  how often it has flipped, 15 at most

A state changes by fixed rules, so the number of weights in each state follows from the flips. Flips and weights are
added up by layer and state over the frames, older ones with decreasing weight. Weights whose states flip about as
often, once in 2^c to 2^(c + 1) frames, form class c; the flips of a class are coded as one layer of a set. All is
integer arithmetic. Shapes: P weights, L layers, S = 256 states, C = 32 classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from peermask.wire.schema import MessageRow, Schema
from peermask.wire.sets import (
    Cursor,
    Integers,
    Mask,
    SetPlan,
    decode_layer,
    plan_positions,
    positions,
    read_entry,
    slices,
)

Bytes: TypeAlias = NDArray[np.uint8]

STATES = 256
CLASSES = 32
OLDEST = 7
MOST_FLIPS = 15
FIRST = OLDEST << 1  # the state of a weight that is off, in a keyframe; one more for a weight that is on
WEIGHT = 16  # of one position in the sums; each frame they lose an eighth
FADE = 3
ENOUGH = 512  # of a sum, to take a rate from it
UNKNOWN = 4  # the class of a state that was hardly ever seen

_STATE = np.arange(STATES)
_AGE = (_STATE >> 1) & OLDEST
# The state after each state [S] when the weight flips.
FLIPPED: Bytes = (_STATE & 1 ^ 1 | np.minimum((_STATE >> 4) + 1, MOST_FLIPS) << 4).astype(np.uint8)


def states_without_flips(frame: int) -> Bytes:
    """The state after each state [S] when frame number `frame` does not flip a weight: ages 3 to 6 end every 2, 4, 8
    and 16 frames."""
    older = (_AGE < OLDEST) & (frame % (1 << np.maximum(_AGE - 2, 0)) == 0)
    states: Bytes = (_STATE + 2 * older).astype(np.uint8)
    return states


def age_states(states: Bytes, frame: int) -> Bytes:
    """`states_without_flips(frame)[states]` of many weights [P]; a look-up would be slower.

    Ages up to 2 + the power of two in the frame's number end, below the oldest.
    """
    power = (frame & -frame).bit_length() - 1
    age = np.uint8(min(2 + power, OLDEST - 1) << 1)
    older: Bytes = ((states & np.uint8(OLDEST << 1)) <= age).view(np.uint8)
    return states + 2 * older


def flips_between(before: Mask, after: Mask) -> Integers:
    """The positions where two masks differ, which rise."""
    return positions(before ^ after)


def classes_of(seen: Integers, flips: Integers) -> Bytes:
    """The class of each layer and state [L, S] from the sums [L, S]; one little seen in a layer is judged by all."""
    own = seen >= ENOUGH
    weights = np.where(own, seen, seen.sum(0))
    # Flips are among those seen, so it is 1 or more.
    ratio = weights // np.maximum(np.where(own, flips, flips.sum(0)), 1)
    octave = np.searchsorted(1 << np.arange(1, CLASSES), ratio, side="right")  # floor(log2)
    return np.where(weights >= ENOUGH, octave, UNKNOWN).astype(np.uint8)


@dataclass(frozen=True)
class Contexts:
    """Contexts of one mask leaf after a frame, the same at both ends."""

    layers: tuple[int, ...]
    states: Bytes  # [P]
    weights: Integers  # [L, S] how many are in each state
    seen: Integers  # [L, S] weights of the frames before, fading
    flips: Integers  # [L, S] flips of the frames before, fading
    frames: int  # since the keyframe

    @classmethod
    def begin(cls, mask: Mask, layers: Sequence[int]) -> Contexts:
        """Begin the contexts that follow a keyframe."""
        weights = np.zeros((len(layers), STATES), np.int64)
        for layer, part in zip(weights, slices(layers), strict=True):
            ones = int(np.count_nonzero(mask[part]))
            layer[FIRST], layer[FIRST + 1] = part.stop - part.start - ones, ones
        none = np.zeros_like(weights)
        return cls(tuple(layers), mask.view(np.uint8) + np.uint8(FIRST), weights, none, none, 0)

    @classmethod
    def from_saved(cls, states: Bytes, seen: Integers, flips: Integers, frames: int, layers: Sequence[int]) -> Contexts:
        """Restore contexts from the parts that cannot be computed from others."""
        weights = np.stack([np.bincount(states[part], minlength=STATES) for part in slices(layers)])
        return cls(tuple(layers), states, weights, seen, flips, frames)

    def after(self, flipped: Integers) -> Contexts:
        """Return the contexts after a frame in which the positions `flipped` changed."""
        was, frame = self.states[flipped], self.frames + 1
        bounds = np.searchsorted(flipped, np.cumsum(self.layers)[:-1])
        new = np.stack([np.bincount(part, minlength=STATES) for part in np.split(was, bounds)])  # [L, S]
        stays = states_without_flips(frame)
        states = age_states(self.states, frame)
        states[flipped] = FLIPPED.take(was)
        rows = STATES * np.arange(len(self.layers))[:, None]
        targets = np.concatenate([rows + stays, rows + FLIPPED])  # [2 L, S]
        moved = np.concatenate([self.weights - new, new])
        weights = np.bincount(targets.ravel(), moved.ravel(), self.weights.size)  # whole numbers: exact
        return Contexts(
            self.layers,
            states,
            weights.astype(np.int64).reshape(self.weights.shape),
            self.seen - (self.seen >> FADE) + WEIGHT * self.weights,
            self.flips - (self.flips >> FADE) + WEIGHT * new,
            frame,
        )

    @cached_property
    def classes(self) -> Bytes:
        """[L, S]; before the first flips a class is a layer."""
        if self.frames == 0:
            layer = np.minimum(np.arange(len(self.layers)), CLASSES - 1).astype(np.uint8)
            return np.repeat(layer[:, None], STATES, 1)
        return classes_of(self.seen, self.flips)

    @cached_property
    def sizes(self) -> Integers:
        """[C] weights of each class."""
        return np.bincount(self.classes.ravel(), self.weights.ravel(), CLASSES).astype(np.int64)

    @property
    def used(self) -> list[int]:
        """The classes that have weights: only those are in a frame's table."""
        return [int(c) for c in np.flatnonzero(self.sizes)]

    @cached_property
    def largest(self) -> int:
        """The class of most weights."""
        return int(self.sizes.argmax())

    def others(self) -> tuple[Integers, Bytes]:
        """The positions of all weights outside of the largest class, among few others, in order, and their classes.

        Most weights are in the largest class and have never flipped, so that few have to be looked at."""
        apart = (self.states | 1) != FIRST + 1  # has flipped [P]
        for row, part in zip(self.classes, slices(self.layers), strict=True):
            for state in (FIRST, FIRST + 1):
                if row[state] != self.largest:
                    apart[part] |= self.states[part] == state
        found = positions(apart)
        bounds = np.searchsorted(found, np.cumsum(self.layers)[:-1])
        each = zip(self.classes, np.split(self.states[found], bounds), strict=True)
        return found, np.concatenate([row.take(states) for row, states in each])

    def members(self) -> list[Integers]:
        """The positions of the weights of each class [C], in order."""
        found, own = self.others()
        inside = np.ones(len(self.states), np.bool_)
        inside[found[own != self.largest]] = False
        members = [found[own == c] for c in range(CLASSES)]
        members[self.largest] = np.flatnonzero(inside)
        return members


def plan_flips(contexts: Contexts, flipped: Integers) -> SetPlan:
    """The flips of each class as a layer: where they are among the weights of their class."""
    owner, rank = ranks_in_class(contexts, flipped)
    each = ((rank[owner == c], int(contexts.sizes[c])) for c in contexts.used)
    return SetPlan(tuple(plan_positions(places, size) for places, size in each))


def ranks_in_class(contexts: Contexts, flipped: Integers) -> tuple[Bytes, Integers]:
    """The class of each flip and how many weights of that class are before it; [F] positions -> twice [F]."""
    ends = np.cumsum(contexts.layers)
    owner = contexts.classes[np.searchsorted(ends, flipped, side="right"), contexts.states[flipped]]
    found, own = contexts.others()
    places = np.searchsorted(found, flipped)  # among all that are found
    rank = np.empty(len(flipped), np.int64)
    for c in set(owner.tolist()):
        of_class = owner == c
        rank[of_class] = np.searchsorted(np.flatnonzero(own == c), places[of_class])
        if c == contexts.largest:
            rank[of_class] += flipped[of_class] - places[of_class]  # what is not among those found
    return owner, rank


def decode_flips(cursor: Cursor, contexts: Contexts) -> Integers:
    """The positions that flip, in no order."""
    sizes = {c: int(contexts.sizes[c]) for c in contexts.used}
    entries = {c: read_entry(cursor, size) for c, size in sizes.items()}
    places = {c: decode_layer(cursor, *entries[c], size) for c, size in sizes.items()}
    cursor.end_bits()
    members = contexts.members()
    return np.concatenate([members[c][found] for c, found in places.items()])


@dataclass(frozen=True)
class History:
    """All that a sender sent since a keyframe, named by the checksum of its last frame.

    That frame names the history before it in turn, so two ends whose histories have the same name have the same one.
    """

    payload: MessageRow  # the last message
    contexts: Mapping[str, Contexts]  # of its masks
    round: int = 0
    name: int = 0

    @classmethod
    def begin(cls, payload: MessageRow, schema: Schema, round: int = 0, name: int = 0) -> History:
        """Begin the history that follows a keyframe."""
        contexts = {
            leaf.name: Contexts.begin(payload[leaf.name], leaf.layers) for leaf in schema.leaves if leaf.is_mask
        }
        return cls(payload, contexts, round, name)

    def after(self, payload: MessageRow, round: int = 0, name: int = 0) -> History:
        """Return the history after a frame that builds on this one."""
        contexts = {
            leaf: before.after(flips_between(self.payload[leaf], payload[leaf]))
            for leaf, before in self.contexts.items()
        }
        return History(payload, contexts, round, name)

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        tables = (array for c in self.contexts.values() for array in (c.states, c.weights, c.seen, c.flips))
        return sum(array.nbytes for array in (*self.payload.values(), *tables))
