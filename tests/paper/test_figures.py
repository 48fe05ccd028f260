"""Figures of made-up outcomes: which lines they have, and where."""

from __future__ import annotations

from typing import Any

import pytest

from peermask.paper import figures
from peermask.paper.outcome import Curve, FirstLayer, Outcome
from peermask.paper.pages import mean_overlap
from peermask.paper.preset import preset

pytest.importorskip("matplotlib")


def outcome(start: float, messages: int = 40) -> Outcome:
    """Two agents, evaluated in rounds 5 and 10; ten rounds of four messages."""
    agents = [[start, start + 0.2], [start + 0.1, start + 0.3]]
    curve = Curve(rounds=[5, 10], agents=agents, megabytes=[2.0, 4.0], paper_megabytes=[20.0, 40.0])
    return Outcome(config={"rounds": 10}, accuracy=start, messages=messages, megabytes=4.0, curve=curve)


class Made:
    """A campaign with two seeds in every cell."""

    def outcomes(self, name: str, row: int, column: int) -> list[Outcome]:  # noqa: ARG002
        return [outcome(0.1 * column), outcome(0.1 * column + 0.2)]


def lines_of(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    named = [line for line in axes.lines if not line.get_label().startswith("_")]
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in named}


def test_accuracy_over_rounds_is_the_median_over_seeds_with_a_line_for_each() -> None:
    names = [row.name for row in preset("convergence").rows]
    (axes,) = figures._by_rounds(preset("convergence"), {0: [outcome(0.1), outcome(0.3)], 1: [outcome(0.5)]}).axes
    lines = lines_of(axes)
    assert list(lines) == names[:2]
    assert lines[names[0]][0] == [5, 10]
    assert lines[names[0]][1] == pytest.approx([0.25, 0.45])
    assert lines[names[1]][1] == pytest.approx([0.55, 0.75])
    assert len(axes.lines) == 4  # two of them seeds of the first row


def test_a_legend_says_where_many_agents_are_stuck() -> None:
    config = {"partition": {"labels_per_agent": 5}}
    better, worse = (outcome(start).model_copy(update={"config": config}) for start in (0.5, -0.05))
    lines = lines_of(figures._by_rounds(preset("convergence"), {0: [better], 1: [better, worse]}).axes[0])
    names = [row.name for row in preset("convergence").rows]
    assert list(lines) == [names[0], f"{names[1]}\n(1 of 4 agents stuck)"]


def test_a_link_carries_its_share_and_a_method_that_sends_nothing_is_a_line_across() -> None:
    names = [row.name for row in preset("accord").rows]
    sent = outcome(0.1)
    (axes,) = figures._by_link(preset("accord"), {0: [sent], 1: [outcome(0.5, messages=0)]}).axes
    lines = lines_of(axes)
    assert sent.messages_a_round is not None
    assert lines[names[0]][0] == pytest.approx([2.0 / sent.messages_a_round, 4.0 / sent.messages_a_round])
    assert lines[f"{names[1]} (sends nothing)"][1] == pytest.approx([0.75, 0.75])
    assert axes.get_xscale() == "log"


def test_a_panel_for_every_row_has_a_line_for_every_column() -> None:
    wanted = preset("graphs")
    panels = figures._by_columns(Made(), "graphs").axes  # type: ignore[arg-type]
    assert [axes.get_title() for axes in panels] == [row.name for row in wanted.rows]
    assert len({axes.get_xlim() + axes.get_ylim() for axes in panels}) == 1
    for axes in panels:
        lines = lines_of(axes)
        assert list(lines) == [column.name for column in wanted.columns]
        assert lines[wanted.columns[1].name][1] == pytest.approx([0.25, 0.45])


def test_a_table_is_a_bar_for_every_cell_with_the_papers_figure_as_a_mark() -> None:
    wanted = preset("table3")  # one row, four columns
    axes: Any = figures._as_bars(Made(), "table3").axes[0]  # type: ignore[arg-type]
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([0.1, 0.2, 0.3, 0.4])  # means of two seeds
    (marks,) = (line for line in axes.lines if line.get_label() == "_")
    assert list(marks.get_ydata()) == list(wanted.rows[0].paper)
    assert [label.get_text() for label in axes.get_xticklabels()] == [column.name for column in wanted.columns]


def test_a_figure_is_the_same_file_every_time_and_none_without_runs() -> None:
    first, again = (figures.draw(Made(), "graphs") for _ in range(2))  # type: ignore[arg-type]
    assert first == again
    assert first["graphs.png"].startswith(b"\x89PNG")
    assert first["graphs.svg"].startswith(b"<?xml")
    nothing = Made()
    nothing.outcomes = lambda *_: []  # type: ignore[method-assign]
    assert figures.draw(nothing, "graphs") == {}  # type: ignore[arg-type]


def test_masks_of_agents_with_the_same_retention_are_compared() -> None:
    """1100 and 1010 share one of three weights; the third agent keeps another share, the fourth and fifth nothing."""
    bits = ["c0", "a0", "f0", "00", "00"]
    layer = FirstLayer(shape=[2, 1, 1, 2], agents=bits)
    made = Outcome(config={"retention": [0.2, 0.2, 1.0, 0.1, 0.1]}, first_layer=layer)
    assert mean_overlap(made) == pytest.approx(1 / 3)
    assert mean_overlap(Outcome(config={"retention": 0.2}, first_layer=layer)) is None


def test_layers_have_names_that_a_reader_knows() -> None:
    assert figures.layer_names({"model": {"name": "alexnet"}}, ["0.weight"] * 5)[3] == "linear 1"
    assert figures.layer_names({}, ["0.weight", "3.weight"]) == ["layer 1", "layer 2"]
