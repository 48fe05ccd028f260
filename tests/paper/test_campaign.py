"""A cut of `reproduce` small enough for a test: it runs what is missing, and nothing twice."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_scale import DIGITS, SMALL, Told, campaign

from peermask.config.file import make_config
from peermask.errors import ConfigError, PeermaskError, RunError
from peermask.files import read_json, try_lock, write_json
from peermask.paper import preset as presets
from peermask.paper.campaign import read_data
from peermask.paper.cells import Cell
from peermask.paper.outcome import Outcome
from peermask.paper.output_folder import OutputFolder
from peermask.paper.pages import write_pages
from peermask.paper.tuning import Tuning
from peermask.run.jobs import Stopped


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Skip tuning: it has tests of its own."""

    def chosen_already(**options: dict[str, float]) -> None:
        choices = {name.replace("_", "-"): {"algorithm": value} for name, value in options.items()}
        trials = Tuning.trials
        monkeypatch.setattr(Tuning, "trials", lambda own, method: [] if method in choices else trials(own, method))
        monkeypatch.setattr(Tuning, "chosen", lambda _, method: choices.get(method))

    return chosen_already


def test_a_table_is_tuned_with_one_seed_runs_and_is_not_run_again(tmp_path: Path) -> None:
    first, told = campaign(tmp_path / "out", "table3", seeds=(4,)), Told()
    first.run(told)
    assert ["tuning" in name for name in told.names] == [True] * 8 + [False] * 4  # the grid; ring, 0.3, 0.5 and 0.7
    assert told.names[8:] == [cell.name for cell in first.cells]
    assert first.missing() == 0
    assert write_pages(first) == []
    page = (tmp_path / "out" / "table3.md").read_text()
    assert "| MCE-PL | 0." in page
    assert "| all labels | own labels | weighted |" in page
    assert (tmp_path / "out" / "table3.tex").read_text().startswith("% Table III")
    record = read_json(first.home.choices)
    assert "seed 4" in record["mce-pl"]["on"]
    other, again = campaign(tmp_path / "out", "table3", seeds=(7, 4)), Told()
    other.run(again)
    assert again.names == [cell.name for cell in other.cells if cell.seed == 7]
    write_pages(other)
    assert read_json(first.home.choices) == record
    assert not list((tmp_path / "out" / "runs").glob("*/checkpoints"))


def test_what_two_experiments_share_is_run_once(tmp_path: Path, choose: Callable[..., None]) -> None:
    campaign(tmp_path / "out").home.open("quick", DIGITS)
    choose(mce_pl={"lr": 1.0})
    campaign(tmp_path / "out", "table3").run(Told())
    told = Told()
    both = campaign(tmp_path / "out", "table3", "cost2")
    with pytest.raises(Reached):
        both.run(_until(told, "avr-weipru"))
    assert told.names == []


def test_a_stopped_campaign_goes_on_where_it_was(tmp_path: Path, choose: Callable[..., None]) -> None:
    out = tmp_path / "out"
    campaign(out)
    choose(mce_pl={"lr": 1.0})
    asked = iter([False] * 4 + [True] * 100)
    stopped = campaign(out, "table3", should_stop=lambda: next(asked))
    with pytest.raises(Stopped):
        stopped.run(Told())
    assert 0 < stopped.missing() < 4
    write_pages(stopped)
    assert " - " in (out / "table3.md").read_text()  # what is missing is shown as such
    on = campaign(out, "table3")
    on.run(Told())
    assert on.missing() == 0


def test_deleting_the_runs_loses_no_result(tmp_path: Path, choose: Callable[..., None]) -> None:
    import shutil

    out = tmp_path / "out"
    campaign(out)
    choose(mce_pl={"lr": 1.0})
    campaign(out, "table3").run(Told())
    shutil.rmtree(out / "runs")
    kept = campaign(out, "table3")
    assert kept.missing() == 0


def test_a_run_that_diverges_is_a_result_and_the_rest_goes_on(tmp_path: Path, choose: Callable[..., None]) -> None:
    out = tmp_path / "out"
    campaign(out)
    huge = {"lr": 1e30}
    choose(dsgd=huge, dsgd_prox=huge, lottery_dsgd=huge, mce_pl={"lr": 1.0})
    whole = campaign(out, "cost1")
    whole.run(Told())
    assert whole.missing() == 0
    outcome = whole.outcome(Cell("cost1", 0, 0, 0))
    assert outcome is not None
    assert outcome.diverged is not None
    write_pages(whole)
    assert "| DSGD | diverged" in (out / "cost1.md").read_text()
    assert (out / "cost1.png").stat().st_size > 1000
    again = Told()
    campaign(out, "cost1").run(again)
    assert again.names == []


def test_configs_are_what_finished_runs_had_and_other_pages_stay(tmp_path: Path, choose: Callable[..., None]) -> None:
    """An earlier version may have had other defaults."""
    choose(mce_pl={"lr": 1.0})
    whole = campaign(tmp_path / "out", "table3")
    job = whole.job(whole.cells[0])
    assert job is not None
    whole.home.keep(job, Outcome(config={"retention": 0.25}, diverged="nan"))
    (tmp_path / "out" / "mine.md").write_text("# Mine\n\nFrom another call.\n")
    write_pages(whole)
    assert "| [mine](mine.md) | see there | Mine |" in (tmp_path / "out" / "README.md").read_text()
    ring, *others = sorted((tmp_path / "out" / "configs" / "table3").iterdir(), reverse=True)
    assert tomllib.loads(ring.read_text()) == {"retention": 0.25}
    assert all("agents" in tomllib.loads(other.read_text()) for other in others)


@pytest.mark.long
def test_every_figure_and_filter_table_is_drawn(tmp_path: Path, choose: Callable[..., None]) -> None:
    out = tmp_path / "out"
    campaign(out)
    lr = {"lr": 0.1}
    choose(mce_pl=lr, ind_mask=lr, weight_pm1={"lr": 1e-4}, mask_pm1={"lr": 1e-4}, weight_default=lr, mask_default=lr)
    names = ("dslth", "masks", "structure")
    whole = campaign(out, *names)
    whole.run(Told())
    assert write_pages(whole) == []
    for name in names:
        assert (out / f"{name}.svg").read_text().startswith("<?xml")
        assert list((out / "configs" / name).glob("*.toml"))
    assert "Live filters" in (out / "structure.md").read_text()
    assert "agent 8" in (out / "masks.md").read_text()
    assert "[masks](masks.md) | 2 of 2" in (out / "README.md").read_text()


def test_a_folder_of_another_scale_other_data_or_another_kind_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    campaign(out)
    with pytest.raises(RunError, match="holds results of scale 'quick', not 'paper'"):
        OutputFolder(out).open("paper", DIGITS)
    marker = read_json(out / "reproduce.json")
    write_json(out / "reproduce.json", {**marker, "dataset": {"name": "cifar10", "sha256": "0" * 64}})
    with pytest.raises(RunError, match="was run on cifar10 data with hash 000000000000"):
        OutputFolder(out).open("quick", DIGITS)
    OutputFolder(out).open("quick", None)  # experiments that name other data
    own = OutputFolder(tmp_path / "own")
    own.open("quick", None)
    own.look("quick")
    own.open("quick", DIGITS)  # recorded with the first experiment that uses it
    assert read_json(own.path / "reproduce.json")["dataset"]["name"] == "digits"
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / ".reproduce.json.1234.part").touch()  # another process starts in this very moment
    OutputFolder(tmp_path / "begun").open("quick", DIGITS)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="was not made by"):
        OutputFolder(tmp_path / "file").open("quick", DIGITS)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("mine")
    with pytest.raises(RunError, match="was not made by"):
        OutputFolder(tmp_path / "thesis").open("quick", DIGITS)
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]


def test_only_data_that_is_used_is_read() -> None:
    assert read_data("paper", ["accord-easy"], None) is None  # digits, at every scale
    with pytest.raises(ConfigError, match="--data-dir here: these experiments use digits; remove it"):
        read_data("paper", ["accord-easy"], "here")
    with pytest.raises(PeermaskError, match="cannot read nowhere"):
        read_data("paper", ["accord-easy", "table1"], "nowhere")


def test_the_tiny_scale_has_all_agents_of_the_quick_one() -> None:
    assert "agents" not in SMALL
    assert presets.scales()["quick"].config["agents"] == 20


class Reached(Exception):
    """What a test waits for has begun."""


def _until(told: Told, word: str):  # type: ignore[no-untyped-def]
    """Tell, but stop at the first thing with a word in its name."""

    def tell(done: int, total: int, name: str) -> None:
        if word in name:
            raise Reached
        told(done, total, name)

    return tell


def test_what_a_killed_run_left_behind_is_finished(tmp_path: Path, choose: Callable[..., None]) -> None:
    """Killed before the config was written, or in the middle of a round: neither leaves a checkpoint."""
    out = tmp_path / "out"
    first = campaign(out, "table3")
    choose(mce_pl={"lr": 1.0})
    early, late = (first.job(Cell("table3", 0, column, 0)) for column in (0, 1))
    assert early is not None
    assert late is not None
    (out / "runs" / early.key / "checkpoints").mkdir(parents=True)
    whole = campaign(tmp_path / "whole", "table3")
    whole.run(Told())
    left = whole.home.run(late).path.rename(out / "runs" / late.key)
    (left / "result.json").unlink()
    (left / "checkpoints").mkdir()
    first.run(Told())
    assert [first.outcome(cell).hash for cell in first.cells] == [whole.outcome(cell).hash for cell in whole.cells]  # type: ignore[union-attr]


def test_a_damaged_outcome_is_named(tmp_path: Path, choose: Callable[..., None]) -> None:
    out = tmp_path / "out"
    there = campaign(out, "table3")
    choose(mce_pl={"lr": 1.0})
    job = there.job(there.cells[0])
    assert job is not None
    (out / "outcomes" / f"{job.key}.json").write_text("{")
    with pytest.raises(RunError, match=f"{job.key}.json is damaged"):
        there.missing()


def test_what_another_process_is_at_is_left_to_it(tmp_path: Path, choose: Callable[..., None]) -> None:
    choose(mce_pl={"lr": 1.0})
    whole = campaign(tmp_path / "out", "table3")
    jobs = [whole.job(cell) for cell in whole.cells]
    told = Told()
    with try_lock(tmp_path / "out" / "runs" / f".{jobs[0].key}.lock") as ours:  # type: ignore[union-attr]
        assert ours
        with pytest.raises(Stopped):  # all the others are done, and it waits for the first
            campaign(tmp_path / "out", "table3", should_stop=lambda: "waiting" in "".join(told.names[-1:])).run(told)
    assert len(told.names) == 4
    assert told.names[-1] == "waiting for runs of other processes"
    whole.run(told)
    assert whole.missing() == 0
    assert told.names[-1] == whole.cells[0].name
    assert not list((tmp_path / "out" / "runs").glob(".*.lock"))


def test_an_experiment_on_other_data_reads_its_own(tmp_path: Path) -> None:
    """`accord-easy` is on digits at every scale, `fashion` on Fashion-MNIST."""
    made = campaign(tmp_path / "out", "accord-easy")
    config = make_config({"dataset": "digits"})
    assert replace(made, dataset=DIGITS)._queue._read(config) is DIGITS
    assert replace(made, dataset=replace(DIGITS, name="cifar10"))._queue._read(config).name == "digits"
