"""Downloads into a per-user cache folder: a file gets its name only after its contents were checked."""

from __future__ import annotations

import http.client
import os
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from peermask.errors import DataError
from peermask.files import replacing

CHUNK = 2**20
TIMEOUT = 30.0  # seconds without receiving anything


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/peermask, or ~/.cache/peermask."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "peermask"


def download(url: str, target: Path, limit: int, check: Callable[[Path], object]) -> None:
    """Fetch at most `limit` bytes; `check` raises DataError if the contents are wrong."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, temporary.open("wb") as file:
                copy(answer, file, limit, url)
            check(temporary)
    except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
        reason = getattr(error, "reason", None) or error
        raise DataError(f"cannot download {url}: {reason}") from error


def copy(source: http.client.HTTPResponse, file: BinaryIO, limit: int, url: str) -> None:
    """Copy in chunks, with a count on stderr when that is a terminal."""
    shown = sys.stderr.isatty()
    done = 0
    while chunk := source.read(CHUNK):
        done += len(chunk)
        if done > limit:
            raise DataError(f"{url} has more than the {limit} bytes expected: it is not the right file")
        file.write(chunk)
        if shown:
            sys.stderr.write(f"\r{url} {done / 1e6:.0f} MB")
    if shown:
        sys.stderr.write("\n")
