"""Commands as processes that have imported no plug-in, forked from a server that has imported all the rest once."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["command_process", "peermask.cli.main", "peermask.experiment.runner"])
PATIENCE = 300.0  # seconds; a test that needs them fails


@dataclass(frozen=True)
class Done:
    returncode: int | None
    stdout: str
    stderr: str


def command(arguments: Sequence[str], folder: str, environment: dict[str, str], outputs: Sequence[str]) -> None:
    from peermask.cli.main import main

    for number, path in enumerate(outputs, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    os.chdir(folder)
    os.environ.update(environment)
    sys.path[:0] = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    main(list(arguments))


def process(*arguments: object) -> Done:
    """`peermask ...` in this folder and environment."""
    outputs = [Path.cwd() / ".stdout", Path.cwd() / ".stderr"]
    told = ([str(each) for each in arguments], str(Path.cwd()), dict(os.environ), [str(path) for path in outputs])
    started = CONTEXT.Process(target=command, args=told)
    started.start()
    started.join(PATIENCE)
    if started.is_alive():
        started.kill()
        started.join()
    return Done(started.exitcode, *(path.read_text() for path in outputs))
