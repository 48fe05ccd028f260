"""The Containerfile, as far as it can be tried without a container engine: no image is built here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from waiting import PATIENCE

ROOT = Path(__file__).parent.parent


def instructions() -> list[tuple[str, str]]:
    """(`RUN`, `python -m venv /venv`) and so on, in order."""
    lines = [line for line in (ROOT / "Containerfile").read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    words = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [(word, rest.strip()) for word, _, rest in words]


def last(word: str) -> str:
    return [rest for found, rest in instructions() if found == word][-1]


def copied() -> list[str]:
    """What the build takes from the repository."""
    return [
        name for word, rest in instructions() if word == "COPY" and "--from" not in rest for name in rest.split()[:-1]
    ]


def test_every_instruction_is_one_and_the_agent_is_not_root() -> None:
    known = {"FROM", "RUN", "COPY", "ARG", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}
    assert {word for word, _ in instructions()} == known | {"ENTRYPOINT", "CMD"}
    assert [rest.split()[0] for word, rest in instructions() if word == "FROM"] == ["${BASE}"] * 2
    assert instructions()[0] == ("ARG", "BASE=python:3.12-slim")
    assert last("USER") == "peermask"
    assert f"useradd --uid 1000 --no-create-home {last('USER')}" in last("RUN")
    assert last("VOLUME") == last("WORKDIR") == "/fleet"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any("'.[node]'" in rest for word, rest in instructions() if word == "RUN")
    assert "node" in extras


def test_what_is_copied_builds_a_wheel_and_nothing_else_is_sent(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    assert sent == set(copied())
    for name in copied():
        copy: Callable[..., object] = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "dist").glob("*.whl"))


def test_the_agents_options_exist() -> None:
    words = json.loads(last("ENTRYPOINT"))
    assert words[:3] == ["peermask", "node", "fleet.toml"]
    command = [sys.executable, "-m", "peermask", "node", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    for option in (word for word in words if word.startswith("--")):
        assert option in shown


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_tells_healthy_from_stalled(status: int, code: int) -> None:
    from peermask.page_server import PageServer, serve_pages

    check = json.loads(last("HEALTHCHECK").partition("CMD ")[2])
    port = json.loads(last("ENTRYPOINT"))[json.loads(last("ENTRYPOINT")).index("--metrics") + 1]
    assert f":{port}/healthz" in check[-1]
    with serve_pages(PageServer("127.0.0.1", 0, {"/healthz": lambda: (status, "text/plain", b"\n")})) as opened:
        script = check[-1].replace(f":{port}/", f":{opened.port}/")
        done = subprocess.run([sys.executable, *check[1:-1], script], capture_output=True, timeout=PATIENCE)
    assert done.returncode == code, done.stderr
