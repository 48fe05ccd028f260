"""Kernels are compiled side by side before a run: what a round of many agents calls was compiled for one."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pkgutil import iter_modules

import numpy as np
import pytest
import torch

import peermask.kernels
from peermask.algorithms.contract import Clock
from peermask.config.file import make_config
from peermask.data.arrays import from_arrays
from peermask.run import assemble
from peermask.run.assemble import compile_kernels, rehearse
from peermask.run.build import build
from peermask.wire.cost import message_cost

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def compiled() -> dict[str, int]:
    """How many variants there are of each kernel."""
    counts = {}
    for module in iter_modules(peermask.kernels.__path__):
        if module.name.endswith("_triton"):
            for name, kernel in vars(import_module(f"peermask.kernels.{module.name}")).items():
                if hasattr(kernel, "device_caches"):
                    variants = sum(len(cache[0]) for cache in kernel.device_caches.values())
                    counts[f"{module.name}.{name}"] = variants
    return counts


@pytest.mark.parametrize("agents", [5, 8])
@pytest.mark.parametrize(
    ("model", "shape"), [("alexnet", (3, 32, 32)), ("cnn", (1, 28, 28)), ("resnet18", (3, 16, 16))]
)
@pytest.mark.parametrize("algorithm", ["mce-pl", "dsgd"])
def test_kernels_are_compiled_beforehand(
    agents: int, model: str, shape: tuple[int, ...], algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 10
    images = rng.integers(0, 256, (600, *shape), dtype=np.uint8)
    settings = {
        "agents": agents,
        "rounds": 3,
        "retention": 0.3,
        "model": model,
        "algorithm": algorithm,
        "batch_size": 20,
    }
    experiment = build(make_config(settings), from_arrays(images, labels, images, labels))
    counts = {}

    def compile_and_count(*arguments: object) -> None:
        compile_kernels(*arguments)  # type: ignore[arg-type]
        counts.update(compiled())

    monkeypatch.setattr(assemble, "compile_kernels", compile_and_count)
    with assemble.build_simulator(experiment, torch.device("cuda")) as simulator:
        known = None
        for number in (1, 2):
            shared = simulator.play(Clock(number, 3)).shared
            _, known = message_cost(shared, known, experiment.network.layout.sizes)
        simulator.test()
    assert {name: count for name, count in compiled().items() if count > counts[name]} == {}


def test_a_gpu_is_woken_beside_the_caller() -> None:
    rehearse(torch.device("cuda"))  # which a thread of its own does without a word about errors
    woken = """
import threading, torch
from peermask.run.assemble import wake
wake(torch.device("cuda"))
(thread,) = set(threading.enumerate()) - {threading.main_thread()}
thread.join()
assert torch.cuda.is_initialized()
before = threading.active_count()
wake(torch.device("cuda"))
assert threading.active_count() == before
"""
    subprocess.run([sys.executable, "-c", woken], check=True)
