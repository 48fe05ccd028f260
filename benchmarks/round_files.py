"""Which files of the package a round goes through: `python -m benchmarks.round_files --device cuda`.

Plays a few rounds of mce-pl, without evaluations and checkpoints, and names every file one of whose functions was
called between the start and the end of a round, or one of whose kernels was launched. Prints and asserts nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import peermask
from peermask.run.loop import Loop

ROOT = Path(peermask.__file__).parent
ROUNDS = 6  # on a GPU a step is played, watched and recorded, and then replayed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="cnn")
    options = parser.parse_args()
    called = called_in_rounds(options.model, options.device)
    files = sorted(Path(file).relative_to(ROOT).as_posix() for file in called if Path(file).is_relative_to(ROOT))
    print(*files, sep="\n")
    print(f"{len(files)} files in a round of mce-pl, {options.model}, on {options.device}")


def called_in_rounds(model: str, device: str) -> set[str]:
    """The files of all functions called, and of all kernels launched, in rounds."""
    called: set[str] = set()
    inside = threading.Event()

    def noted(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and inside.is_set():
            called.add(frame.f_code.co_filename)

    def played(self: Loop) -> int:
        if self.progress.round:  # what follows the first
            inside.set()
        try:
            return play(self)
        finally:
            inside.clear()

    play: Callable[[Loop], int] = Loop._play
    Loop._play = played  # type: ignore[method-assign]
    note_launches(called, inside)
    threading.setprofile(noted)
    sys.setprofile(noted)
    config = {"algorithm": "mce-pl", "model": model, "agents": 4, "rounds": ROUNDS, "batch_size": 16}
    rare = {"evaluation": {"every": ROUNDS}, "checkpoint": {"every": ROUNDS}, "data": {"fraction": 0.2}}
    try:
        with tempfile.TemporaryDirectory() as folder:
            peermask.run_experiment(config | rare, Path(folder) / "run", execution=peermask.Execution(device=device))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return called


def note_launches(called: set[str], inside: threading.Event) -> None:
    """A kernel is not called but launched: by `run` of what `triton.jit` made of it."""
    try:
        from triton.runtime import JITFunction
    except ImportError:
        return
    launch = JITFunction.run

    def run(kernel: Any, *arguments: Any, **options: Any) -> Any:
        if inside.is_set():
            called.add(kernel.fn.__code__.co_filename)
        return launch(kernel, *arguments, **options)

    JITFunction.run = run


if __name__ == "__main__":
    main()
