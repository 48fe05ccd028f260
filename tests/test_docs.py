"""What the documents show works as shown."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from command_process import process
from peermask.experiment.result import RunResult

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "results").rglob("*.md")])


def test_the_algorithm_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own: registering is for good."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    first_block = re.search(r"```python\n(.*?)```", (DOCS / "adding.md").read_text(), re.DOTALL)
    assert first_block
    (tmp_path / "gossip_median.py").write_text(first_block[1])
    keys = ("agents=4", "retention=0.3", "rounds=3", "model.name=mlp", "algorithm.name=gossip-median")
    done = process("run", "--import", "gossip_median.py", *(f"--set={key}" for key in keys), "--out", "run")
    assert (done.returncode, done.stderr) == (0, "")
    result = RunResult.open(tmp_path / "run")
    assert result.status == "finished"
    assert result.sent_bytes > 0


def anchors(page: Path) -> set[str]:
    """What a link may name behind `#`: the headings, as GitHub and the site write them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}: no such heading"


def test_every_document_is_in_the_sites_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    for page in DOCS.glob("*.md"):
        assert f"docs/{page.name}\n" in navigation, f"add docs/{page.name} to nav in mkdocs.yml"


@pytest.mark.long
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert '<h2 id="peermask.run_experiment"' in (tmp_path / "docs" / "api.html").read_text()
    assert "<math" in (tmp_path / "docs" / "theory.html").read_text()
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=[\"']?([^\"' >]+)", page.read_text())
        assert not [address for address in loaded if "//" in address], page.name
