"""Experiments and plug-ins of the user's own: run beside the built-in ones, recorded, and found again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from peermask.cli.main import main
from peermask.files import file_digest
from peermask.paper import preset
from plugin_state import forget_plugins

METHOD = '''
from typing import ClassVar

from peermask.algorithms import algorithms
from peermask.algorithms.ind_mask import IndMask


@algorithms.register("own-mask")
class Own(IndMask):
    """As ind-mask."""
'''
OWN = """
title = "Mine"
config = { agents = 3, rounds = 2, retention = 0.5, model = { name = "mlp", hidden = [4] } }

[[columns]]
name = "c = 3"

[[rows]]
name = "own"
method = "own"

[methods.own]
algorithm = { name = "own-mask" }
grid = [{ lr = 1.0 }]
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "method.py").write_text(METHOD)
    (tmp_path / "mine.toml").write_text(OWN)
    yield
    forget()


def forget() -> None:
    """As in a new process."""
    preset._own.clear()
    preset._own_methods.clear()
    forget_plugins()


def reproduce(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    forget()
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", "--scale", "quick", "--seeds", "1", "--device", "cpu", "--out", "out", *arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_an_experiment_with_a_plug_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = reproduce(capsys, "mine.toml", "--import", "method.py")
    assert (code, err) == (0, "")
    record = json.loads((tmp_path / "out" / "reproduce.json").read_text())
    held = {"file": str(tmp_path / "method.py"), "sha256": file_digest(tmp_path / "method.py", "sha256")}
    assert record["imports"] == [held]
    (manifest,) = sorted((tmp_path / "out" / "runs").glob("own-mask-*/manifest.json"))
    assert json.loads(manifest.read_text())["imports"] == [held]
    table = (tmp_path / "out" / "mine.csv").read_text()
    assert "own" in table
    assert "needs the plug-in" in reproduce(capsys, "mine.toml")[2]
    code, out, err = reproduce(capsys, "mine.toml", "--import", "method.py")  # nothing is left to do
    assert (code, err) == (0, "")
    assert "missing" not in out
    assert reproduce(capsys, "mine.toml", "--import", "method.py", "--tables-only")[0] == 0
    assert (tmp_path / "out" / "mine.csv").read_text() == table
    assert "[mine](mine.md)" in (tmp_path / "out" / "README.md").read_text()


def test_a_time_limit_leaves_the_rest_to_later_processes_on_the_same_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("mine.toml", "--import", "method.py")
    code, out, err = reproduce(capsys, *words, "--minutes", "0")
    assert (code, err) == (0, "")
    assert "1 of 1 cells are missing; rerun the same command to resume" in out
    code, out, err = reproduce(capsys, *words, "--processes", "2")
    assert (code, err) == (0, "")
    assert "missing" not in out
    assert len((tmp_path / "out" / "outcomes.jsonl").read_text().splitlines()) == 1


def test_a_plug_in_that_has_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce(capsys, "mine.toml", "--import", "method.py")[0] == 0
    (tmp_path / "method.py").write_text(METHOD + "\n# later\n")
    code, _, err = reproduce(capsys, "mine.toml", "--import", "method.py")
    assert code == 2
    assert err.count("\n") == 1
    assert "method.py has changed: SHA-256" in err
    assert err.endswith("restore it, or give another --out\n")


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ('method = "own"', 'method = "owm"', "unknown method 'owm'; did you mean 'own'?"),
        ("[methods.own]", "[methods.mce-pl]", "methods.mce-pl is built in"),
        ('title = "Mine"', "", "title: must be given"),
        ("grid = [{ lr = 1.0 }]", "grid = []", "grid = []"),
        ("grid = [{ lr = 1.0 }]", 'grid = [{ lr = 1.0 }]\ntuned_on = "x"', "is tuned on 'x', which has no row of it"),
        ("[methods.own]", "[method.own]", "method: unknown key"),
    ],
)
def test_an_experiment_that_is_none(
    before: str, after: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.toml").write_text(OWN.replace(before, after))
    code, _, err = reproduce(capsys, "mine.toml", "--import", "method.py")
    assert code == 2
    assert line in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_without_its_plug_in_a_name_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = reproduce(capsys, "mine.toml")
    assert code == 2
    assert "unknown algorithm 'own-mask'" in err
    (tmp_path / "table1.toml").write_text(OWN)
    assert "is the name of something else" in reproduce(capsys, "table1.toml")[2]
    assert "gone.toml" in reproduce(capsys, "gone.toml")[2]
