"""What is released installs and runs where nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from waiting import PATIENCE

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def call(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the sdist, as an installer would."""
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    call("-m", "hatchling", "build", "-t", "sdist", "-d", out, cwd=ROOT)
    with tarfile.open(next(out.glob("*.tar.gz"))) as archive:
        archive.extractall(out, filter="data")
    call("-m", "hatchling", "build", "-t", "wheel", "-d", out, cwd=out / f"peermask-{PROJECT['version']}")
    return next(out.glob("*.whl"))


def needed(requirements: list[str], known: set[str]) -> Iterator[str]:
    """The names of all packages that these requirements install, without extras."""
    for requirement in map(Requirement, requirements):
        if requirement.name in known or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        known.add(requirement.name)
        yield requirement.name
        yield from needed(distribution(requirement.name).requires or [], known)


@pytest.mark.long
def test_the_wheel_runs_with_its_declared_dependencies_and_nothing_else(wheel: Path, tmp_path: Path) -> None:
    """The dependencies are linked from where they are: fetching torch anew would take minutes."""
    installed = tmp_path / "installed"
    installed.mkdir()
    for name in needed(PROJECT["dependencies"], set()):
        files = distribution(name).files or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            (installed / top).symlink_to(str(distribution(name).locate_file(top)))
    call("-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", installed, wheel, cwd=tmp_path)
    alone = {"PYTHONPATH": str(installed), "PYTHONDONTWRITEBYTECODE": "1"}  # and -S: no site-packages
    where = call("-S", "-c", "import peermask; print(peermask.__file__)", cwd=tmp_path, **alone)
    assert Path(where.strip()) == installed / "peermask" / "__init__.py"
    assert PROJECT["version"] in call("-S", installed / "bin" / "peermask", "--version", cwd=tmp_path, **alone)
    short = ["--set", "rounds=2", "--set", "agents=4", "--device", "cpu", "--out", "run"]
    call("-S", "-m", "peermask", "run", *short, cwd=tmp_path, **alone)
    assert list((tmp_path / "run").rglob("result.json"))


def test_the_sdist_has_what_building_and_testing_need(wheel: Path) -> None:
    unpacked = wheel.parent / f"peermask-{PROJECT['version']}"
    for name in ("LICENSE", "README.md", "CITATION.cff", "constraints.txt", "tests/test_release.py", "docs/api.md"):
        assert (unpacked / name).is_file(), name
    assert (unpacked / "results" / "paper" / "README.md").is_file()  # the documents link to it
    assert not (unpacked / "results" / "paper" / "outcomes.jsonl").exists()


def test_the_citation_names_the_version_that_is_released() -> None:
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()
