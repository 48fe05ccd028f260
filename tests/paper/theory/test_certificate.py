"""No input can exceed the certificate, and for one layer some input attains it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from theory_cases import by_hand, kernel, some_layers, uniform

from peermask.paper.theory.measures import certified_distance


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 500), corner=st.booleans())
def test_no_input_exceeds_it(seed: int, corner: bool) -> None:
    f, h = some_layers(seed, (2, 2, 3, 2)), some_layers(seed + 1, (2, 2, 3, 2))
    image = uniform(seed + 2, 2, 4, 4).abs()
    image = (image > 0.5).double() if corner else image
    apart = abs(by_hand(f, image.numpy()) - by_hand(h, image.numpy())).max()
    assert apart <= certified_distance(f, h) + 1e-12


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 500))
def test_a_single_layer_attains_it(seed: int) -> None:
    (f,), (h,) = some_layers(seed, (2, 1)), some_layers(seed + 1, (2, 1))
    delta = (h - f)[0]  # [2, 3, 3]: the image that agrees with its sign, the other way round where that is more
    worst = max(float((delta * (delta > 0)).sum()), float(-(delta * (delta < 0)).sum()))
    assert certified_distance((f,), (h,)) == pytest.approx(worst)
    images = [(delta > 0).double().numpy(), (delta < 0).double().numpy()]
    seen = max(abs(by_hand((f,), x) - by_hand((h,), x)).max() for x in images)
    assert seen == pytest.approx(worst)


def test_two_layers_worked_by_hand() -> None:
    f = (kernel(0.5), kernel(0.5))
    h = (kernel(0.6), kernel(0.4))
    # layer 1: |0.1|·1 = 0.1, activation at most 0.5; layer 2: |0.1|·0.5 + 0.4·0.1
    assert certified_distance(f, h) == pytest.approx(0.09)
    assert certified_distance(f, f) == 0
    assert torch.equal(f[0], kernel(0.5))
