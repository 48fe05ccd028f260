"""What is at hand at once: help, version, lists, completion; and the reference of all keys of a config."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from peermask.cli.main import main
from peermask.cli.plan import KINDS
from peermask.config.catalogue import KEPT, as_json, as_markdown, catalogue
from peermask.config.experiment import ExperimentConfig
from peermask.config.file import make_config
from peermask.run.runner import run_experiment
from waiting import PATIENCE

DOCS = Path(__file__).parents[2] / "docs"
AGAIN = "run: python -m peermask.config.catalogue docs/config.md"


def test_the_lists_and_the_reference_are_those_of_the_code() -> None:
    found = catalogue()
    assert KEPT.read_text(encoding="utf-8") == as_json(found), AGAIN
    assert json.loads(as_json(found)) == found
    assert (DOCS / "config.md").read_text(encoding="utf-8") == as_markdown(found), AGAIN
    assert set(found) == set(KINDS)


def test_everything_and_every_option_is_described() -> None:
    content = catalogue()
    found = {entry["name"]: entry["options"] for entry in content["options"]}
    for table in ("[data]", "[mask]", "[frozen]", "[evaluation]", "[stop]", "[checkpoint]", "[retention]"):
        assert found[table]
    assert {option["key"] for option in found[""]} >= {"agents", "rounds", "seed", "retention", "graph", "compare"}
    every = [(kind, entry) for kind, entries in content.items() for entry in entries]
    assert [(kind, entry["name"]) for kind, entry in every if not entry["summary"]] == []
    options = [(kind, entry["name"], option) for kind, entry in every for option in entry["options"]]
    assert [(*where, option["key"]) for *where, option in options if not option["about"]] == []


def test_the_defaults_it_gives_are_those_a_config_has() -> None:
    table = make_config({}).table()
    for entry in catalogue()["options"]:
        within = table.get(entry["name"].strip("[]")) if entry["name"] else table
        for option in entry["options"]:
            if within is not None and option["default"][0].isdigit():  # a table may be absent unless asked for
                assert within[option["key"]] == json.loads(option["default"])
    assert set(ExperimentConfig.model_fields) == {
        *(option["key"] for option in catalogue()["options"][0]["options"]),
        *("data", "frozen", "mask", "evaluation", "stop", "checkpoint"),
    }


@pytest.mark.parametrize("arguments", [[], ["-h"], ["--help"], ["--version"], ["list"], ["run", "--help"], ["fleet"]])
def test_nothing_that_computes_is_imported_for_what_computes_nothing(arguments: list[str]) -> None:
    assert imported_by(arguments, "torch", "numpy", "networkx") == []


def test_runs_are_shown_listed_and_compared_without_torch(
    tmp_path: Path, small: Callable[..., ExperimentConfig]
) -> None:
    run_experiment(small(rounds=2, compare=[{"name": "ind-mask"}]), tmp_path / "run")
    for words in (["show"], ["runs", "list"], ["runs", "compare"]):
        assert imported_by([*words, str(tmp_path / "run")], "torch", "networkx") == []


def imported_by(arguments: list[str], *heavy: str) -> list[str]:
    """Of these modules, those that a command imports."""
    look = f"""
import sys
from peermask.cli.main import main
try:
    main({arguments!r})
except SystemExit as end:
    assert not end.code
print(*sorted({set(heavy)!r} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    *said, loaded = done.stdout.split("\n")[:-1]
    assert said
    return loaded.split()


def test_the_summary_of_every_command_fits_its_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([])
    said = capsys.readouterr().out
    assert "Commands:" in said
    assert "..." not in said.split("Commands:")[1]


def test_options_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["list", "options"])
    said = capsys.readouterr().out
    assert "[stop]" in said
    assert "patience = 0  whole number, at least 0  evaluations without improvement before stopping" in said
    with pytest.raises(SystemExit) as stopped:
        main(["list", "option"])
    assert stopped.value.code == 2
    assert "there is no list of 'option'; did you mean 'options'?" in capsys.readouterr().err


def test_a_shell_completes_commands_and_options() -> None:
    def completed(words: str) -> list[str]:
        asked = {"_PEERMASK_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        start = "import sys; sys.argv = ['peermask']; from peermask.__main__ import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", start], env={**os.environ, **asked}, capture_output=True, text=True, check=False
        )
        return done.stdout.split()

    assert completed("peermask re") == ["reproduce", "relay", "report"]
    assert "--resume" in completed("peermask run --re")
