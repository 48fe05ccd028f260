"""Pictures of masks, worked by hand."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
from report_cases import write_run

from peermask.models.layout import Layer
from peermask.reports.mask_pictures import PICTURE_BYTES, first_window, kernel, live_filters, mask_pictures, overlaps
from peermask.reports.source import open_sources
from peermask.store.checkpoint import SNAPSHOTS_KEPT, load_masks


def test_overlap_is_what_both_keep_among_what_either_keeps() -> None:
    masks = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]], bool)
    assert overlaps(masks)[0].tolist() == [1.0, 1 / 3, 0.0]
    assert overlaps(masks)[2, 2] == 1.0  # two empty masks are equal


def test_a_filter_lives_that_keeps_a_weight() -> None:
    mask = np.array([[0, 0, 0, 1, 1, 1]], bool)
    assert live_filters(mask, Layer("a", "conv", (3, 2), 0, 2)).tolist() == [2]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((4, 3, 5, 5), [3, 5, 5]), ((4, 64), [1, 8, 8]), ((4, 3072), [3, 32, 32]), ((4, 7), [1, 1, 7])],
)
def test_a_filter_is_drawn_as_the_image_it_reads(shape: tuple[int, ...], expected: list[int]) -> None:
    assert kernel(Layer("a", "conv", shape, 0, 1)) == expected


def test_pictures_of_many_agents_stay_within_their_bytes() -> None:
    wide = (Layer("a", "linear", (4096, 3072), 0, 3072),)
    window = first_window(wide, agents=100, rounds=SNAPSHOTS_KEPT)
    assert window.filters * 3072 * 100 * SNAPSHOTS_KEPT / 8 <= 4 * PICTURE_BYTES
    assert window.start == (4096 - window.filters) // 2  # the middle ones


def test_the_pictures_hold_the_masks_that_were_saved(tmp_path: Path) -> None:
    (source,) = open_sources(write_run(tmp_path / "a"))
    found = mask_pictures(source, shown=4)
    assert found is not None
    masks = load_masks(source.masks()[20][0], 392)
    assert found["rounds"] == [10, 20]
    packed = np.frombuffer(base64.b64decode(found["first"]["bits"][1]), np.uint8).reshape(4, -1)
    assert (np.unpackbits(packed, axis=1)[:, :72] == masks[:, :72]).all()
    assert found["kept"][1][0] == [masks[0, :72].sum(), masks[0, 72:].sum()]
