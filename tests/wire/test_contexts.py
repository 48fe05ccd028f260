"""Contexts: states and classes by hand, against a slow reference that looks at one weight at a time, and losslessly."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_cases import random_bits

from peermask.wire.history import (
    CLASSES,
    FLIPPED,
    STATES,
    Contexts,
    age_states,
    classes_of,
    decode_flips,
    flips_between,
    plan_flips,
    states_without_flips,
)
from peermask.wire.sets import Cursor, encode_set


def test_a_weights_ages_by_hand():
    """Flipped in frame 1: then a frame older each time, until ages last for 2, 4, 8 and 16 frames."""
    state = np.array([14])  # off, oldest, never flipped
    state = FLIPPED[state]
    assert state[0] == 0b0001_000_1
    ages = {}
    for frame in range(2, 41):
        state = states_without_flips(frame)[state]
        ages[frame] = int(state[0] >> 1 & 7)
    assert [ages[k] for k in (2, 3, 4, 5, 6, 7, 8, 15, 16, 31, 32, 40)] == [1, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    assert state[0] == 0b0001_111_1
    assert FLIPPED[state][0] == 0b0010_000_0
    assert FLIPPED[0b1111_111_0] == 0b1111_000_1  # fifteen flips at most


def test_sums_and_classes_by_hand():
    mask = np.zeros(1000, bool)
    start = Contexts.begin(mask, (600, 400))
    assert start.classes[0, 14] == 0
    assert start.classes[1, 14] == 1  # a class is a layer at first
    assert start.sizes[:3].tolist() == [600, 400, 0]
    after = start.after(np.arange(6))
    assert after.weights[0, [14, 17]].tolist() == [594, 6]
    assert (after.seen[0, 14], after.flips[0, 14]) == (9600, 96)
    assert (after.seen[1, 14], after.flips[1, 14]) == (6400, 0)
    # Layer 0: 9600 // 96 = 100 is at least 2^6. Layer 1: 6400 // 1 is at least 2^12. New states: class 4.
    assert (after.classes[0, 14], after.classes[1, 14], after.classes[0, 17]) == (6, 12, 4)
    assert after.sizes[[4, 6, 12]].tolist() == [6, 594, 400]
    later = after.after(np.array([0]))
    assert later.seen[0, 14] == 9600 - 1200 + 16 * 594
    assert later.flips[0, 17] == 16


def test_a_state_little_seen_in_a_layer_is_judged_by_all_layers():
    seen, flips = np.zeros((2, STATES), np.int64), np.zeros((2, STATES), np.int64)
    seen[0, 5], flips[0, 5] = 511, 0
    seen[1, 5], flips[1, 5] = 512, 256
    classes = classes_of(seen, flips)
    assert classes[:, 5].tolist() == [1, 1]  # 1023 // 256 = 3, 512 // 256 = 2
    assert classes_of(2**40 + seen, flips).max() == CLASSES - 1


class Slow:
    """One weight at a time, in plain Python."""

    def __init__(self, mask, layers):
        self.layer = [number for number, size in enumerate(layers) for _ in range(size)]
        self.bit, self.age, self.count = [int(bit) for bit in mask], [7] * len(mask), [0] * len(mask)
        self.seen, self.flips, self.frames = defaultdict(int), defaultdict(int), 0

    def states(self):
        return [b | a << 1 | c << 4 for b, a, c in zip(self.bit, self.age, self.count, strict=True)]

    def after(self, flipped):
        self.frames += 1
        for sums in (self.seen, self.flips):
            for key in sums:
                sums[key] -= sums[key] // 8
        for i, state in enumerate(self.states()):
            self.seen[self.layer[i], state] += 16
            self.flips[self.layer[i], state] += 16 * (i in flipped)
            if i in flipped:
                self.bit[i], self.age[i], self.count[i] = 1 - self.bit[i], 0, min(self.count[i] + 1, 15)
            elif self.age[i] < 7 and self.frames % [1, 1, 1, 2, 4, 8, 16][self.age[i]] == 0:
                self.age[i] += 1

    def class_of(self, i):
        layer, state = self.layer[i], self.states()[i]
        if self.frames == 0:
            return min(layer, 31)
        seen, flips = self.seen[layer, state], self.flips[layer, state]
        if seen < 512:
            seen = sum(n for (_, s), n in self.seen.items() if s == state)
            flips = sum(n for (_, s), n in self.flips.items() if s == state)
        return 4 if seen < 512 else min((seen // max(flips, 1)).bit_length() - 1, 31)


@settings(max_examples=25, deadline=None)
@given(
    layers=st.lists(st.integers(1, 60), min_size=1, max_size=4).map(tuple),
    rates=st.lists(st.sampled_from([0.0, 0.02, 0.3, 0.9, 1.0]), min_size=1, max_size=12),
    seed=st.integers(0, 99),
)
def test_random_histories_against_the_slow_reference(layers, rates, seed):
    size = sum(layers)
    mask = random_bits(f"mask {seed}", size, 0.4)
    contexts, slow = Contexts.begin(mask, layers), Slow(mask, layers)
    for number, rate in enumerate(rates):
        assert contexts.states.tolist() == slow.states()
        members = contexts.members()
        assert [c for c in range(CLASSES) for _ in members[c]] == sorted(slow.class_of(i) for i in range(size))
        assert all(slow.class_of(i) == c for c in range(CLASSES) for i in members[c])
        flipped = np.flatnonzero(random_bits(f"{seed} {number}", size, rate))
        plan = plan_flips(contexts, flipped)
        data = encode_set(plan, [int(contexts.sizes[c]) for c in contexts.used])
        cursor = Cursor(data)
        assert sorted(decode_flips(cursor, contexts).tolist()) == flipped.tolist()
        assert cursor.at_end
        assert len(data) == plan.size
        contexts = contexts.after(flipped)
        slow.after(set(flipped.tolist()))
        whole = [np.bincount(part, minlength=STATES) for part in np.split(contexts.states, np.cumsum(layers)[:-1])]
        assert (contexts.weights == np.stack(whole)).all()


def test_likely_flips_are_short():
    """A tenth of the weights flip every other time, the others hardly ever."""
    size = 20_000
    hot = random_bits("hot", size, 0.1)
    contexts = Contexts.begin(np.zeros(size, bool), (size,))
    sizes = []
    for k in range(20):
        flips = (hot & random_bits(f"hot {k}", size, 0.5)) | random_bits(f"cold {k}", size, 0.0005)
        sizes.append(plan_flips(contexts, np.flatnonzero(flips)).size)
        contexts = contexts.after(np.flatnonzero(flips))
    assert sizes[-1] < 0.5 * sizes[0]


def test_contexts_come_back_from_what_is_saved():
    contexts = Contexts.begin(random_bits("saved", 300, 0.5), (100, 200))
    for k in range(3):
        contexts = contexts.after(np.flatnonzero(random_bits(f"saved {k}", 300, 0.1)))
    again = Contexts.from_saved(contexts.states, contexts.seen, contexts.flips, contexts.frames, contexts.layers)
    assert (again.weights == contexts.weights).all()
    assert (again.classes == contexts.classes).all()


def test_ages_without_a_table_are_those_of_the_table():
    states = np.arange(STATES, dtype=np.uint8)
    for frame in range(1, 130):
        assert (age_states(states, frame) == states_without_flips(frame)).all()


def test_masks_of_different_sizes_are_an_error() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        flips_between(np.zeros(96, bool), np.zeros(48, bool))
