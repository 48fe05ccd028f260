"""Inputs to measure on, and the climb towards the supremum."""

from __future__ import annotations

import pytest
import torch
from theory_cases import kernel, some_layers

from peermask.errors import DataError
from peermask.paper.theory.measures import certified_distance, climb, distances, max_norms, random_inputs
from peermask.paper.theory.networks import outputs


def test_random_inputs_are_in_the_cube_half_of_them_at_corners() -> None:
    images = random_inputs((1, 4, 4), 10, seed=0)
    assert images.shape == (10, 1, 4, 4)
    assert 0 <= images.min() <= images.max() <= 1
    assert set(images[1::2].unique().tolist()) == {0.0, 1.0}
    assert torch.equal(images, random_inputs((1, 4, 4), 10, seed=0))


def test_the_climb_ends_between_what_was_seen_and_the_certificate() -> None:
    f, h = some_layers(1), some_layers(2)
    images = random_inputs((1, 5, 5), 20, seed=1)
    seen = float(max_norms(outputs(f, images) - outputs(h, images)).max())
    assert seen <= climb(f, h, images) <= certified_distance(f, h) + 1e-12


def test_the_climb_finds_the_supremum_of_a_single_weight() -> None:
    images = random_inputs((1, 1, 1), 1, seed=0)
    assert climb((kernel(0.5),), (kernel(0.2),), images) == pytest.approx(0.3)


def test_images_outside_the_cube_are_refused() -> None:
    f = some_layers(1)
    with pytest.raises(DataError, match=r"\[0, 16\]"):
        distances("here", (f, f), (f, f), torch.tensor([0.0, 16.0]).reshape(2, 1, 1, 1))
