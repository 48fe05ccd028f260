"""Seconds from process start to the printed table of the paper's 400 rounds: `python -m benchmarks.whole_run FOLDER`.

FOLDER holds CIFAR-10 in its binary form. Runs `peermask run` in this process and says when each part of it ended, and
how long the rounds waited: for evaluations, and for the disk. The second run in a row finds kernels compiled, and
Python's bytecode and the data in memory. Prints and asserts nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.start_up import say

CONFIG = """
agents = 20
rounds = {rounds}
batch_size = 128
retention = 0.3
model = "alexnet"
algorithm = "mce-pl"
dataset = {{ name = "cifar10", folder = "{folder}" }}
partition = {{ name = "labels", labels_per_agent = 3 }}
evaluation = {{ every = 10 }}
checkpoint = {{ every = 50 }}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    say("python")
    import torch  # noqa: F401 (most of what a run imports)

    say("torch imported")
    from peermask.cli.main import main as run
    from peermask.run import loop, runner
    from peermask.run.loop import Loop
    from peermask.store.checkpoint import Background

    say("peermask imported")
    spent: Counter[str] = Counter()
    told(runner, "build_arms", "data, graph and network built")
    told(loop, "build_simulator", "agents on the device, kernels compiled")
    told(Loop, "_run", "rounds finished")
    told(Loop, "run", "last checkpoint on the disk")
    summed(Loop, "_evaluate", spent)
    summed(Loop, "_save", spent)
    summed(Background, "wait", spent)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.toml"
        config.write_text(CONFIG.format(folder=options.folder.absolute(), rounds=options.rounds))
        out = str(Path(folder) / "run")
        sys.argv = ["peermask", "run", str(config), "--out", out, "--device", options.device]
        try:
            run()
        except SystemExit as left:
            if left.code:
                raise
        say("table printed")
    print(
        f"of it evaluations {spent['_evaluate']:.2f} s, checkpoints {spent['_save']:.2f} s; "
        f"waiting for the disk {spent['wait']:.2f} s"
    )


def told(owner: Any, name: str, what: str) -> None:
    """Say when a function has returned."""
    function: Callable[..., Any] = getattr(owner, name)

    def and_told(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        say(what)
        return result

    setattr(owner, name, and_told)


def summed(owner: Any, name: str, spent: Counter[str]) -> None:
    """Add up the seconds in all calls of a function."""
    function: Callable[..., Any] = getattr(owner, name)

    def and_summed(*arguments: Any, **options: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*arguments, **options)
        finally:
            spent[name] += time.perf_counter() - begun  # type: ignore[assignment]

    setattr(owner, name, and_summed)


if __name__ == "__main__":
    main()
