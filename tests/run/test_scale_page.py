"""What docs/scale.md shows works as shown."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rank_process import RankRun

from peermask.config.experiment import ExperimentConfig
from peermask.run.result import RunResult

Small = Callable[..., ExperimentConfig]
PAGE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()


def run_text(text: str) -> None:
    exec(compile(text, "docs/scale.md", "exec"), {})


def test_the_python_of_the_page(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process, and in two ranks: the same result."""
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
        (folder / "experiment.toml").write_text(small().toml())
    with RankRun(folders[1], 2) as ranks:
        ranks.start(text, work=run_text)
        monkeypatch.chdir(folders[0])
        run_text(text)
        assert ranks.join() == [0, 0], ranks.lines()
    one, two = (RunResult.open(folder / "runs" / "python") for folder in folders)
    assert one.hash == two.hash


@pytest.mark.long
def test_the_commands_of_the_page(small: Small, tmp_path: Path) -> None:
    """Those for one machine, in the order of the page."""
    (tmp_path / "experiment.toml").write_text(small().toml())
    found = re.findall(r"(?:^    peermask|^    torchrun|`torchrun)[^`#\n]* run [^`#\n]*", PAGE, re.MULTILINE)
    commands = [command.strip("` ") for command in found]
    assert len(commands) == 3
    for command in commands:
        name, *arguments = shlex.split(command)
        module = {"peermask": "peermask", "torchrun": "torch.distributed.run"}[name]
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    runs = [RunResult.open(path.parent) for path in tmp_path.glob("runs/*/manifest.json")]
    assert len(runs) == 3
    assert len({run.hash for run in runs}) == 1
