"""Seconds from process start to the first finished round of the paper's setting: `python -m benchmarks.start_up`.

Cold, where no kernel has been compiled before; warm, where Triton's cache holds them. Importing torch takes twice as
long where Python finds no bytecode of it, so the second line says. Prints and asserts nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--agents", type=int, default=20)
    options = parser.parse_args()
    say("python")
    import torch

    kept = Path(importlib.util.cache_from_source(torch.__file__)).exists()
    say(f"torch imported, {'with' if kept else 'without'} bytecode")
    from benchmarks.round_time import random_images
    from peermask.algorithms.contract import Clock
    from peermask.compute.device import pick_device
    from peermask.config.file import make_config
    from peermask.errors import RunError
    from peermask.run.assemble import build_simulator
    from peermask.run.build import build

    say("peermask imported")
    try:
        device = pick_device(options.device)
    except RunError as error:
        parser.error(str(error))
    settings = {"agents": options.agents, "batch_size": 128, "retention": 0.3, "model": "alexnet"}
    experiment = build(make_config(settings), random_images(options.agents))
    say("data, graph and network built")

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with build_simulator(experiment, device) as simulator:
        wait()
        say("agents on the device, kernels compiled")
        simulator.play(Clock(1, 2))
        wait()
        say("first round finished")
        simulator.play(Clock(2, 2))
        wait()
        say("second round finished")


def say(what: str) -> None:
    print(f"{time.time() - _process_start():7.2f} s  {what}", flush=True)


def _process_start() -> float:
    """Seconds since the epoch, from the kernel's clock ticks since boot (Linux)."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    since_boot = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - (since_boot - ticks / os.sysconf("SC_CLK_TCK"))


if __name__ == "__main__":
    main()
