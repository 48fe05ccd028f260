"""The command, and what it answers to mistakes: one line, exit 2, nothing touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from peermask.cli.main import main
from peermask.cli.options import parse_seeds
from peermask.cli.paper import _print_table
from peermask.errors import ConfigError
from peermask.files import write_json
from peermask.paper.outcome import Outcome, summarise
from peermask.paper.tables import Entry, Grid


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", *arguments])
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        (["tabel1"], ["unknown experiment 'tabel1'; did you mean 'table1'?"]),
        (["table3", "--scale", "tiny"], ["unknown scale 'tiny'; known: paper, quick"]),
        (["table3", "--scale", "quick", "--device", "tpu"], ["device 'tpu' is not one of"]),
        (["table3", "--data-dir", "nowhere"], ["nowhere", "data_batch_1.bin"]),
        (["table3", "--scale", "quick", "--data-dir", "x"], ["uses the digits in the package"]),
    ],
)
def test_mistakes_leave_no_folder(
    words: list[str], messages: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fails(capsys, *words, "--out", str(tmp_path / "out"))
    assert all(message in said for message in messages)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_scale_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    out.mkdir()
    write_json(out / "reproduce.json", {"scale": "paper"})
    before = (out / "reproduce.json").read_bytes()
    assert "holds results of scale 'paper', not 'quick'" in fails(
        capsys, "table3", "--scale", "quick", "--out", str(out)
    )
    assert [path.name for path in out.iterdir()] == ["reproduce.json"]
    assert (out / "reproduce.json").read_bytes() == before


@pytest.mark.parametrize("text", ["", "x", "1,x", "1;2", "0", "-1", "1,1", "1.5", "1,", "²", f"{2**63},1", "10000"])
def test_a_seed_list_that_is_none(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"--seeds {text!r}" in fails(capsys, "table3", f"--seeds={text}", "--out", str(tmp_path / "out"))
    with pytest.raises(ConfigError):
        parse_seeds(text)


def test_seeds_by_number_or_by_name() -> None:
    assert parse_seeds("3") == [0, 1, 2]
    assert parse_seeds("4, 7") == [4, 7]


def test_the_list_names_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", "--list"])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert "table1-full" in said
    assert "--scale quick" in said


def test_tables_of_what_is_finished_need_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert "holds no results" in fails(capsys, "table3", "--tables-only", "--out", str(out))
    assert not out.exists()
    out.mkdir()
    write_json(out / "reproduce.json", {"scale": "quick"})
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", "table3", "--scale", "quick", "--seeds", "2", "--tables-only", "--out", str(out)])
    assert stopped.value.code == 0
    said = capsys.readouterr().out
    assert "8 of 8 cells are missing" in said
    assert "Table III" not in said  # a table of nothing
    assert "| MCE-PL | - (0.639, -) |" in (tmp_path / "out" / "table3.md").read_text()


@pytest.mark.parametrize("with_paper", [True, False])
def test_the_table_is_printed(with_paper: bool, capsys: pytest.CaptureFixture[str]) -> None:
    entry = Entry("MCE-PL", "ring", 0.639, summarise([Outcome(config={"rounds": 10}, accuracy=0.5)]))
    made = Grid("table3", ((entry,) * 4,))
    _print_table(Console(width=80), made, "It ranks nothing.", with_paper=with_paper)
    said = capsys.readouterr().out
    assert said.endswith("It ranks nothing.\n")
    assert said.startswith("Table III: topologies (accuracy)")
    assert said.count("0.500") == 4
    assert said.count("(paper 0.639)") == 4 * with_paper  # on other data the paper's figures say nothing
