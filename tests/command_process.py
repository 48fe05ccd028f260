"""Commands as processes of their own, forked from a server that has imported all but plug-ins once."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import forkserver


@dataclass(frozen=True)
class Done:
    returncode: int | None
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Around:
    """What surrounds a command."""

    stdout: str | None = None  # a file to write to instead of one that is read
    memory: int | None = None  # bytes it may have
    signal: tuple[int, int] | None = None  # a signal, and the write to disk, from 1, during which it comes


def command(
    arguments: Sequence[str], folder: str, environment: dict[str, str], outputs: Sequence[str], around: Around
) -> None:
    from peermask.cli.main import main

    for number, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    os.chdir(folder)
    os.environ.update(environment)
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    if around.memory is not None:
        resource.setrlimit(resource.RLIMIT_AS, (around.memory, around.memory))
    if around.signal is not None:
        signal_at_write(*around.signal)
    main(list(arguments))


def signal_at_write(number: int, write: int) -> None:
    """Signal this process when it waits for the disk for the n-th time."""
    fsync, writes = os.fsync, 0

    def counted(file: Any) -> None:
        nonlocal writes
        writes += 1
        if writes == write:
            os.kill(os.getpid(), number)
        fsync(file)

    os.fsync = counted  # type: ignore[assignment]


def process(*arguments: object, **around: Any) -> Done:
    """`peermask ...` in this folder and environment. Keywords are fields of `Around`."""
    setting, said = Around(**around), [Path.cwd() / ".stdout", Path.cwd() / ".stderr"]
    outputs = [setting.stdout or str(said[0]), str(said[1])]
    told = [str(each) for each in arguments], str(Path.cwd()), dict(os.environ), outputs, setting
    started = forkserver().Process(target=command, args=told)
    started.start()
    started.join()
    return Done(started.exitcode, *(path.read_text() if path.exists() else "" for path in said))
