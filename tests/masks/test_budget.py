"""How much an agent may keep: exact counts per layer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peermask.errors import ConfigError
from peermask.masks.budget import MaskOptions, RetentionDraw, kept_counts, retentions
from peermask.models.architectures import alexnet
from peermask.models.layout import Layer, Layout, find_layout

ALEXNET = find_layout(alexnet((3, 32, 32), 10))


@pytest.mark.parametrize(
    ("retention", "total"), [(0.1, 281_555), (0.2, 384_435), (0.3, 487_315), (0.4, 590_195), (0.5, 693_075)]
)
def test_the_papers_network_with_linear_layers_at_nine_tenths(retention: float, total: int) -> None:
    assert int(kept_counts(ALEXNET, [retention], MaskOptions()).sum()) == total


def test_counts_are_rounded_not_floored_in_floats() -> None:
    assert kept_counts(ALEXNET, [0.3], MaskOptions())[0, -1] == 1728  # n - int((1 - k) n) gives 1729


def test_linear_layers_may_keep_what_the_agent_keeps() -> None:
    counts = kept_counts(ALEXNET, [0.25], MaskOptions(fc_keep="r"))[0].tolist()
    assert counts == [1200, 51_200, 204_800, 49_152, 480]


@given(st.floats(0, 1, exclude_min=True), st.integers(1, 10_000))
def test_at_least_one_weight_and_at_most_all(retention: float, size: int) -> None:
    layout = Layout((Layer("w", "conv", (1, size), 0, size),), ())
    count = int(kept_counts(layout, [retention], MaskOptions())[0, 0])
    assert 1 <= count <= size
    assert abs(count - retention * size) <= 1


def test_one_value_is_for_every_agent_and_a_list_for_each() -> None:
    assert retentions(0.3, 3, seed=0) == (0.3, 0.3, 0.3)
    assert retentions((0.1, 0.2), 2, seed=0) == (0.1, 0.2)


def test_a_list_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="retention: 2 values for 3 agents"):
        retentions((0.1, 0.2), 3, seed=0)


def test_draws_come_from_the_choices_and_do_not_depend_on_how_many_agents_there_are() -> None:
    draw = RetentionDraw(choices=(0.1, 0.4))
    many = retentions(draw, 50, seed=1)
    assert set(many) == {0.1, 0.4}
    assert retentions(draw, 10, seed=1) == many[:10]


def test_weights_make_a_choice_more_likely() -> None:
    drawn = retentions(RetentionDraw(choices=(0.1, 0.4), weights=(1.0, 99.0)), 200, seed=1)
    assert drawn.count(0.4) > 180
