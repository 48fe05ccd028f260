"""Outcomes of runs: kept, read again, and shown as tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from peermask.config.experiment import ExperimentConfig
from peermask.config.file import make_config
from peermask.errors import RunError
from peermask.files import write_json
from peermask.paper.outcome import Curve, Outcome, measure, summarise
from peermask.paper.output_folder import fold, read_table
from peermask.run.runner import run_experiment
from peermask.store.folder import RunFolder, write_result
from peermask.wire.frame import VERSION

# Two agents, rounds 2, 4, 6 and 8: the last quarter of the run begins after round 6.
METRICS = """round,agent,train_loss,validation_accuracy,test_accuracy,density,unmixed_accuracy,\
test_accuracy_all,test_accuracy_own,test_accuracy_weighted
2,0,1,0.1,0.1,0.5,nan,0.1,0.2,0.3
2,1,1,0.1,0.3,0.7,nan,0.1,0.2,0.3
6,0,1,0.1,0.2,0.5,nan,0.1,0.6,0.3
6,1,1,0.1,0.4,0.7,nan,0.1,0.6,0.3
7,0,1,0.5,0.6,0.5,0.1,0.1,0.7,0.3
7,1,1,0.7,0.4,0.7,0.3,0.1,0.7,0.3
8,0,1,0.9,0.8,0.5,0.1,0.1,0.8,0.3
8,1,1,nan,0.6,0.7,0.3,0.1,0.8,0.3
"""
TRAFFIC = """round,agent,links,paper_bits,ones_bits,coded_bytes
1,0,2,8000000,800000,500000
2,1,1,16000000,1600000,250000
8,0,2,8000000,800000,1000000
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.path.mkdir()
    made.metrics.write_text(METRICS)
    made.traffic.write_text(TRAFFIC)
    made.config.write_text("")
    write_json(made.manifest, {"device": "cpu: x", "agents": [], "layers": [{"shape": [2, 2]}], "weights": 4})
    write_result(made, {"status": "finished", "round": 8, "hash": "abc", "seconds": 1.5})
    return made


def test_accuracies_are_means_over_the_last_quarter(folder: RunFolder) -> None:
    """Agent 0 has 0.6 and 0.8, agent 1 has 0.4 and 0.6."""
    outcome = measure(folder)
    assert outcome.accuracy == pytest.approx(0.6)
    assert outcome.worst == pytest.approx(0.5)
    assert outcome.validation == pytest.approx(0.7)  # of the three that are numbers
    assert outcome.unmixed == pytest.approx(0.2)
    assert outcome.density == pytest.approx(0.6)


def test_both_readouts_are_there(folder: RunFolder) -> None:
    outcome = measure(folder)
    assert outcome.among_all == pytest.approx(0.1)
    assert outcome.own_labels == pytest.approx(0.75)  # of rounds 7 and 8
    assert outcome.weighted == pytest.approx(0.3)
    assert summarise([outcome]).own_labels == outcome.own_labels


def test_bytes_are_counted_over_all_links_and_rounds(folder: RunFolder) -> None:
    """By round 2: 2 · 0.5 + 0.25 MB; by round 8 another 2 · 1 MB."""
    outcome = measure(folder)
    assert outcome.curve is not None
    assert outcome.curve.rounds == [2, 6, 7, 8]
    assert outcome.curve.megabytes == [1.25, 1.25, 1.25, 3.25]
    assert outcome.curve.paper_megabytes == [4, 4, 4, 6]
    assert outcome.ones_megabytes == pytest.approx(0.6)
    assert outcome.curve.mean == pytest.approx([0.2, 0.3, 0.5, 0.7])


def test_a_cell_names_the_codec_whose_bytes_it_has_unless_seeds_differ(folder: RunFolder) -> None:
    new = measure(folder)
    assert (new.codec, summarise([new, new]).codec) == (VERSION, VERSION)
    old = new.model_copy(update={"codec": VERSION - 1})
    assert summarise([new, old]).codec is None


def test_swing_is_the_mean_change_between_evaluations_of_the_second_half(folder: RunFolder) -> None:
    """Agent 0 goes from 0.6 to 0.8, agent 1 from 0.4 to 0.6."""
    outcome = measure(folder)
    assert outcome.swing == pytest.approx(0.2)
    assert Outcome(config={}).swing is None


def test_it_is_the_same_after_being_written_and_read(folder: RunFolder) -> None:
    outcome = measure(folder)
    assert Outcome.model_validate_json(outcome.model_dump_json(exclude_none=True)) == outcome


def test_seeds_are_summed_up_and_diverged_ones_only_counted() -> None:
    outcomes = [Outcome(config={}, accuracy=a, worst=a / 2) for a in (0.6, 0.7)]
    summary = summarise([*outcomes, Outcome(config={}, diverged="nan")])
    assert (summary.seeds, summary.diverged) == (2, 1)
    assert summary.mean == pytest.approx(0.65)
    assert summary.deviation == pytest.approx(0.0707107)
    assert summary.worst == pytest.approx(0.325)
    assert summarise(outcomes[:1]).deviation is None
    assert summarise([]).mean is None


def test_kept_masks_give_live_filters_and_the_first_layer(tmp_path: Path) -> None:
    config: ExperimentConfig = make_config(
        {
            "agents": 2,
            "rounds": 1,
            "batch_size": 4,
            "retention": [0.2, 1.0],
            "graph": {"name": "complete"},
            "data": {"fraction": 0.1},
            "model": {"name": "cnn", "channels": [24], "hidden": 4},
            "algorithm": {"name": "ind-mask"},
            "checkpoint": {"masks": True},
        }
    )
    run_experiment(config, tmp_path / "run")
    outcome = measure(RunFolder(tmp_path / "run"))
    assert outcome.filters is not None
    assert outcome.first_layer is not None
    layer = next(iter(outcome.filters))
    assert outcome.filters[layer][1] == 24
    assert outcome.filters[layer][0] == int(outcome.first_layer.mask(0).any(axis=(1, 2, 3)).sum())
    assert outcome.first_layer.mask(0).sum() == round(0.2 * 24 * 9)
    assert outcome.first_layer.middle(1).shape == (20, 1, 3, 3)


def test_half_way_and_the_agents_that_are_stuck() -> None:
    """Round 4 is half of 8. With two labels one answer for everything gets at most a half, as agent 1 does."""
    curve = Curve(
        rounds=[2, 4, 7, 8],
        agents=[[0.1, 0.6, 0.7, 0.9], [0.1, 0.4, 0.4, 0.6], [0.1, 0.2, 0.5, 0.52]],
        megabytes=[0] * 4,
        paper_megabytes=[0] * 4,
    )
    outcome = Outcome(config={"partition": {"name": "labels", "labels_per_agent": 2}}, accuracy=0.6, curve=curve)
    assert outcome.half_way == pytest.approx(0.4)
    assert outcome.stuck == 1
    assert summarise([outcome, outcome]).stuck == 2
    assert Outcome(config={}, accuracy=0.6, curve=curve).stuck is None
    assert summarise([Outcome(config={}, accuracy=0.6)]).half_way is None


def test_a_constant_answer_is_stuck_with_any_number_of_labels() -> None:
    """The mean of 0.2, 0.2 and 0.2 is above 1/5 in floats, and 1/6 has four digits in a curve."""
    for labels in range(2, 11):
        share = round(1 / labels, 4)
        curve = Curve(rounds=[8, 9, 10], agents=[[share] * 3, [share + 0.001] * 3], megabytes=[], paper_megabytes=[])
        config = {"partition": {"name": "labels", "labels_per_agent": labels}}
        assert Outcome(config=config, curve=curve).stuck == 1
    assert Outcome(config={"partition": {"labels_per_agent": [2, 3]}}, curve=curve).stuck is None


def test_files_become_lines_by_key_and_a_later_file_replaces_a_line(tmp_path: Path) -> None:
    files, table = tmp_path / "outcomes", tmp_path / "outcomes.jsonl"
    files.mkdir()
    assert read_table(table) == {}
    for key, accuracy in (("b", 0.5), ("a", 0.25)):
        write_json(files / f"{key}.json", {"accuracy": accuracy})
    fold(files, table)
    assert [line[:10] for line in table.read_text().splitlines()] == ['{"key": "a', '{"key": "b']
    assert read_table(table) == {"a": {"accuracy": 0.25}, "b": {"accuracy": 0.5}}
    assert list(files.iterdir()) == []
    write_json(files / "a.json", {"accuracy": 0.75})
    fold(files, table)
    assert read_table(table) == {"a": {"accuracy": 0.75}, "b": {"accuracy": 0.5}}


@pytest.mark.parametrize("line", ["{", "[1]", '{"accuracy": 1}', "3"])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    table = tmp_path / "outcomes.jsonl"
    table.write_text('{"key": "a"}\n' + line + "\n")
    with pytest.raises(RunError, match=r"outcomes\.jsonl, line 2: damaged .*delete the line to run it again"):
        read_table(table)


def test_a_damaged_file_is_named_and_nothing_is_lost(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"accuracy": 0.25})
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(RunError, match=r"b\.json is damaged"):
        fold(tmp_path, tmp_path / "outcomes.jsonl")
    assert (tmp_path / "a.json").is_file()
