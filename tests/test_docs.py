"""What the documents show works as shown."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from waiting import PATIENCE

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "results").rglob("*.md")])


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
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert '<h2 id="peermask.run_experiment"' in (tmp_path / "docs" / "api.html").read_text()
    assert "<math" in (tmp_path / "docs" / "theory.html").read_text()
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=[\"']?([^\"' >]+)", page.read_text())
        assert not [address for address in loaded if "//" in address], page.name


def test_every_decision_is_dated_and_in_the_index() -> None:
    folder = DOCS / "decisions"
    index = (folder / "README.md").read_text()
    records = sorted(folder.glob("[0-9]*.md"))
    assert [record.name[:4] for record in records] == [f"{number:04}" for number in range(1, len(records) + 1)]
    for record in records:
        title, dated, *_ = [line for line in record.read_text().splitlines() if line]
        date = re.match(r"Date: (\d{4}-\d{2}-\d{2})\. Status: (?:accepted|(replaced by \d{4}))\. Code: ", dated)
        assert date, record.name
        status = f", {date[2]}" if date[2] else ""
        assert f"| {record.name[:4]} | {date[1]} | [{title.removeprefix('# ')}]({record.name}){status} |\n" in index
        assert "\n**Decision.** " in record.read_text()
        assert "\n**Reason.** " in record.read_text()


def test_pictures_are_as_their_source_draws_them() -> None:
    source = runpy.run_path(str(DOCS / "pictures" / "design.py"))
    for name, draw in source["PICTURES"].items():
        assert (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8") == "\n".join(draw()) + "\n", (
            "run docs/pictures/design.py"
        )


def test_hooks_before_a_commit_run_what_make_check_runs() -> None:
    if not (ROOT / ".pre-commit-config.yaml").exists():
        pytest.skip("the sdist has no hooks")
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    checked = [line.strip().removeprefix("@$(BIN)/") for line in recipe[1].splitlines()]
    hooks = re.findall(r"entry: \.venv/bin/(.*)", (ROOT / ".pre-commit-config.yaml").read_text())
    assert hooks == checked


def test_every_benchmark_is_in_the_index() -> None:
    index = (DOCS / "benchmarks.md").read_text().partition("## Scripts\n")[2].partition("\n## ")[0]
    scripts = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"__init__"}
    assert scripts <= set(re.findall(r"`(\w+)`", index)) | {"compare"}
