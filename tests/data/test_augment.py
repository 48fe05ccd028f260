"""Augmentation cuts and mirrors, and is drawn from keyed streams."""

from __future__ import annotations

import pytest
import torch
from torch import tensor

from peermask.data import Augmentation
from peermask.errors import DataError

IMAGE = tensor([[1.0, 2.0], [3.0, 4.0]]).view(1, 1, 2, 2)


def test_cutting_and_mirroring_by_hand() -> None:
    images = IMAGE.expand(4, 1, 2, 2)
    flips = tensor([False, True, False, True])
    offsets = tensor([[1, 1], [1, 1], [0, 1], [2, 2]])
    shown = Augmentation(flip=True, crop=1).apply(images, flips, offsets)
    assert shown.squeeze(1).tolist() == [[[1, 2], [3, 4]], [[2, 1], [4, 3]], [[0, 0], [1, 2]], [[0, 4], [0, 0]]]


def test_nothing_asked_changes_nothing() -> None:
    plain = Augmentation()
    images = torch.rand(5, 3, 4, 6)
    flips, offsets = plain.draw(5, seed=0, agent=0, round=0)
    assert not flips.any()
    assert not offsets.any()
    assert torch.equal(plain.apply(images, flips, offsets), images)


def test_channels_stay_together() -> None:
    images = torch.rand(8, 3, 5, 5)
    both = Augmentation(flip=True, crop=2)
    drawn = both.draw(8, seed=0, agent=1, round=2)
    assert torch.equal(both.apply(images, *drawn)[:, 1:2], both.apply(images[:, 1:2], *drawn))


def test_draws_are_keyed_and_cover_every_place() -> None:
    both = Augmentation(flip=True, crop=2)
    flips, offsets = both.draw(2000, seed=0, agent=0, round=0)
    assert 900 < int(flips.sum()) < 1100
    assert offsets.unique().tolist() == [0, 1, 2, 3, 4]
    again = both.draw(2000, seed=0, agent=0, round=0)
    assert torch.equal(flips, again[0])
    assert torch.equal(offsets, again[1])
    assert not torch.equal(flips, both.draw(2000, seed=0, agent=1, round=0)[0])


def test_a_negative_crop_is_refused() -> None:
    with pytest.raises(DataError, match="crop is -1"):
        Augmentation(crop=-1)
