"""The page as a file: what is in it, what cannot get out of it, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_cases import ALEXNET_LAYERS, write_run

from peermask.config.experiment import ExperimentConfig
from peermask.config.file import make_config
from peermask.errors import RunError
from peermask.files import write_json
from peermask.reports.page import gather, labels_of, render, write_report
from peermask.reports.sections import positions
from peermask.run.execution import Execution
from peermask.run.jobs import plan_sweep


def data_in(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_a_report_is_one_file_that_asks_for_nothing(tmp_path: Path) -> None:
    path = write_report([write_run(tmp_path / "a")])
    page = path.read_text()
    assert path == tmp_path / "a" / "report.html"
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=\"(?!data:)", page)
    assert "url(" not in page
    data = data_in(page)
    assert data["runs"][0]["curves"]["rounds"] == [5, 10, 15, 20]
    assert data["runs"][0]["accuracy"] == pytest.approx(0.915)


def test_text_from_a_run_stays_text(tmp_path: Path) -> None:
    evil = ("</script><script>alert(1)</script>", "{{script}}", "<!--", *"3456789")
    run = write_run(tmp_path / "a&<b>", classes=evil)
    page = write_report([run]).read_text()
    assert page.count("<script") == 2
    assert "alert(1)</script>" not in page
    assert data_in(page)["runs"][0]["classes"] == list(evil)
    assert "<title>a&amp;&lt;b&gt;" in page


@pytest.mark.long
def test_twenty_agents_and_four_hundred_rounds_stay_below_five_megabytes(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "a", agents=20, rounds=400, every=1, layers=ALEXNET_LAYERS, masks_at=(100, 200, 300, 400)
    )
    kept_masks_share = 24 / 4  # as many rounds as are ever kept
    data = gather([run])
    size = len(render(data, "a"))
    masks = len(json.dumps(data["runs"][0]["masks"]))
    assert size + (kept_masks_share - 1) * masks < 5e6


def test_runs_that_differ_in_the_seed_alone_are_one_curve(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    other = write_run(tmp_path / "c", algorithm="ind-mask")
    data = gather([*runs, other])
    assert [series["label"] for series in data["series"]] == ["mce-pl", "ind-mask"]
    assert data["series"][0]["seeds"] == [0, 1]
    measured = data["series"][0]["measures"]["test_accuracy"]
    assert measured["mean"] == measured["seeds_min"] == measured["seeds_max"]  # both seeds are the same by hand
    assert len(data["runs"]) == 3


def test_copies_of_a_run_are_drawn_once(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, seed=3) for name in "abc"]
    data = gather(runs)
    assert [series["seeds"] for series in data["series"]] == [[3]]
    assert len(data["runs"]) == 1
    assert data["notes"] == [f"Left out: {run}, which has the config and seed of {runs[0]}." for run in runs[1:]]


def test_a_diverged_run_is_left_out_and_named(tmp_path: Path) -> None:
    good = write_run(tmp_path / "good")
    lost = write_run(tmp_path / "lost", algorithm="dsgd", rounds=4, masks_at=(), finished=False)
    write_json(lost / "diverged.json", {"message": "the loss of agent 0 is nan in round 2"})
    data = gather([lost, good])
    assert [series["label"] for series in data["series"]] == ["mce-pl"]
    (note,) = data["notes"]
    assert note == f"Left out: {lost} diverged before its first evaluation (the loss of agent 0 is nan in round 2)."
    with pytest.raises(RunError, match=r"diverged before its first evaluation.*nothing to report"):
        write_report([lost])


def test_labels_name_what_tells_runs_apart() -> None:
    configs = [
        make_config({"agents": 4, "algorithm": {"name": "mce-pl", "lr": lr}, "seed": s})
        for s, lr in ((0, 1.0), (1, 2.0))
    ]
    assert labels_of(configs) == ["mce-pl, algorithm.lr 1.0", "mce-pl, algorithm.lr 2.0"]
    assert labels_of(configs[:1]) == ["mce-pl"]


def test_agents_fill_the_paper_and_lie_where_they_lay_before() -> None:
    links = [(0, 1), (1, 2), (2, 3), (3, 0)]
    placed = positions(4, links)
    assert placed == positions(4, links)
    for axis in (0, 1):
        assert {min(place[axis] for place in placed), max(place[axis] for place in placed)} == {-1.0, 1.0}
    assert positions(1, []) == [[0.0, 0.0]]


def test_a_run_without_evaluations_is_one_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", rounds=4, masks_at=(), finished=False)
    with pytest.raises(RunError, match=r"has no evaluation yet.*after round 5"):
        write_report([run])
    assert not (run / "report.html").exists()


def test_runs_on_different_data_are_not_compared(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", data_hash="e" * 64)]
    with pytest.raises(RunError, match=r"digits d.*digits e.*cannot be compared"):
        write_report(runs)


def test_an_unwritable_target_is_one_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunError, match=r"cannot write .*report.html.*--out"):
        write_report([run], tmp_path / "taken")


def test_a_sweep_is_reported_with_its_values_and_best(tmp_path: Path, small: Callable[..., ExperimentConfig]) -> None:
    config = tmp_path / "small.toml"
    config.write_text(small(compare=[{"name": "ind-mask"}]).toml())
    sweep = plan_sweep(tmp_path / "sweep", config, [], ["algorithm.lr=0.1,1.0"], [0, 1])
    sweep.run(Execution(), lambda *_: None)
    data = gather([tmp_path / "sweep"])
    rows = data["sweep"]["rows"]
    assert [(row["values"], row["algorithm"], row["seeds"]) for row in rows] == [
        ({"algorithm.lr": "0.1"}, "mce-pl", 2),
        ({"algorithm.lr": "1.0"}, "mce-pl", 2),
        ({"algorithm.lr": ""}, "ind-mask", 2),
    ]
    assert sum(row["best"] for row in rows) == 1
    best = next(row for row in rows if row["best"])
    assert data["series"][data["sweep"]["top"]]["label"] == f"mce-pl, algorithm.lr {best['values']['algorithm.lr']}"
    assert len(data["runs"]) == 6
    assert write_report([tmp_path / "sweep"]) == tmp_path / "sweep" / "report.html"
    for run in sweep.runs:
        (tmp_path / "sweep" / run.path / "config.toml").unlink()
    with pytest.raises(RunError, match=r"no run of the sweep in .* has begun yet"):
        gather([tmp_path / "sweep"])


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        (
            "manifest.json",
            b"{}",
            r"manifest\.json is damaged \(config_hash: Field required, perhaps as version 1\.0 wrote it\)",
        ),
        ("metrics.csv", b"\xff\xfe\x00", r"metrics\.csv is damaged \(line 1: byte 0xff is no text\)"),
        ("metrics.csv", b"round,agent,density\n5,0,0.3\n", r"metrics\.csv is damaged \(line 1: no column 'test_acc"),
        ("traffic.csv", b"round,agent\n1,0\n", r"traffic\.csv is damaged \(line 1: no column 'links'\)"),
        ("traffic.csv", b"round,agent,links\n1,0\n", r"traffic\.csv is damaged \(line 2: 2 values for 3 columns\)"),
        ("absences.csv", b"round,agent,neighbour\n1,0,x\n", r"absences\.csv is damaged \(line 2: neighbour 'x'"),
        ("masks/round-000010.npz", b"junk", r"^masks .*round-000010\.npz are damaged: .*; delete that file$"),
        ("masks/round-000010.npz", b"", r"^masks .*round-000010\.npz are damaged"),
        ("masks/round-000010.npz", b"PK\x03\x04 junk", r"^masks .*round-000010\.npz are damaged"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes, what: str) -> None:
    run = write_run(tmp_path / "a", finished=False)  # of one that is, digests differ first
    (run / name).write_bytes(content)
    with pytest.raises(RunError, match=what) as caught:
        write_report([run])
    assert "cannot write" not in str(caught.value)
    assert "allow_pickle" not in str(caught.value)
    assert not (run / "report.html").exists()
