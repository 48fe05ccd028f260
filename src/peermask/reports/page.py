"""One self-contained HTML page: data, drawing code and style in a single file that needs no network."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from peermask.errors import RunError
from peermask.experiment.result import RunResult
from peermask.files import write_atomically
from peermask.reports.gather import gather, open_runs

SCRIPTS = ("uplot", "dom", "save", "curves", "network", "masks", "traffic", "faults", "tables", "page")
STYLES = ("uplot", "page")
TITLED = 4


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Write report.html about one run or several; without `out`, into the run's folder, or here for several."""
    paths = list(dict.fromkeys(paths))  # a run given twice is drawn once
    page = render(gather(open_runs(paths)), title_of(paths))  # what is wrong with a run is no trouble with writing
    folder = out if out is not None else (paths[0] if len(paths) == 1 else Path())
    target = folder / "report.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(target, page.encode())
    except (OSError, RunError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        reason = getattr(cause, "strerror", None) or str(cause)
        raise RunError(f"cannot write {target}: {reason}; give a folder that can be written with --out") from error
    return target


def report(runs: RunResult | Path | str | Sequence[RunResult | Path | str], out: Path | str | None = None) -> Path:
    """Write a page about one run, or about several to compare them.

    Args:
        runs: A result or its run folder, or several of these.
        out: The folder to write to; the run's own, or the current one for several runs.

    Returns:
        The path of `report.html`, which opens from disk and needs no network.

    Raises:
        RunError: A folder is not a run, is damaged, or cannot be written to.

    Examples:
        >>> import peermask
        >>> config = peermask.make_config({"agents": 4, "rounds": 2, "retention": 0.3, "model": "mlp"})
        >>> result = peermask.run_experiment(config, "run")
        >>> peermask.report(result).name
        'report.html'
    """
    several = [runs] if isinstance(runs, RunResult | Path | str) else runs
    paths = [each.root if isinstance(each, RunResult) else Path(each) for each in several]
    return write_report(paths, None if out is None else Path(out))


def title_of(paths: Sequence[Path]) -> str:
    """The folders' names, as many as a heading holds."""
    names = [path.resolve().name for path in paths]
    more = f" and {len(names) - TITLED} more" if len(names) > TITLED else ""
    return " · ".join(names[:TITLED]) + more


def render(data: dict[str, Any], title: str, *, live: bool = False) -> str:
    """The page; a live one asks for its data again and again."""
    parts = {
        "title": html.escape(title),
        "style": "\n".join(_asset(f"{name}.css") for name in STYLES),
        "data": as_json({"title": title, "live": live, **data}),
        "script": "\n".join(_asset(f"{name}.js") for name in SCRIPTS),
    }
    # In one pass: inserted text is not searched again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def as_json(content: dict[str, Any]) -> str:
    """JSON that is safe inside a script element, with any text."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return files("peermask.reports").joinpath("assets", name).read_text(encoding="utf-8")
