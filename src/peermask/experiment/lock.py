"""One process at a time works on a run folder: two would write each other's rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from peermask.errors import RunError
from peermask.experiment.folder import RunFolder
from peermask.files import held, is_half_written


@contextmanager
def locked(folder: RunFolder) -> Iterator[None]:
    """Keep other processes off a run folder."""
    busy = RunError(f"{folder.path} is being run by another process; wait for it, or stop it first")
    with held(folder.lock, busy):
        yield
        # Who holds a deleted lock and who makes it again do not keep each other off. Of a finished run that does no
        # harm: both find its result and only read it.
        if folder.result.is_file():
            with suppress(OSError):
                folder.lock.unlink()


def clear_leftovers(folder: RunFolder, *further: Path) -> None:
    """Remove what a killed process had half written; only with the lock held, since only runs write these files."""
    own = (folder.config, folder.manifest, folder.metrics, folder.traffic, folder.result, *further)
    rests = [rest for file in own for rest in folder.path.glob(f".{file.name}.*.part")]
    for inner in (folder.checkpoints, folder.masks):
        rests += filter(is_half_written, inner.glob(".*"))
    for rest in rests:
        with suppress(OSError):  # it does no harm
            rest.unlink()
