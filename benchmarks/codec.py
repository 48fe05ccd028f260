"""Bytes and milliseconds of the mask codec on masks of a real run, beside a bitmap, zstd and the entropy bound.

    python -m benchmarks.codec [--rounds 60] [--retentions 0.1 0.2 0.3 0.4] [--dataset cifar10] [--folder FOLDER]

One agent per retention, all linked, train the paper's AlexNet with MCE-PL; every agent's masks of chosen rounds are
then coded as keyframes and as deltas. A time is the least CPU time of fifteen on one core, as that depends least on
what else the machine does.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from time import process_time

import numpy as np
import torch
from numpy.typing import NDArray

from peermask.algorithms.contract import Clock
from peermask.experiment.build import build, build_simulator
from peermask.experiment.config import make_config
from peermask.wire import (
    Expected,
    FrameHeader,
    Schema,
    bitmap_size,
    decode_frame,
    encode_frame,
    entropy_bound,
    frame_size,
)

RETENTIONS = (0.1, 0.2, 0.3, 0.4)
RUN_ID = b"codecrun"
REPEATS = 15

Mask = NDArray[np.bool_]


def real_masks(
    dataset: dict[str, str], rounds: int, retentions: Sequence[float]
) -> tuple[NDArray[np.uint8], list[int]]:
    """What every agent shared in every round, packed [rounds, agents, P / 8], and the layer sizes."""
    config = make_config(
        {
            "name": "codec",
            "agents": len(retentions),
            "rounds": rounds,
            "batch_size": 64,
            "retention": list(retentions),
            "graph": {"name": "complete"},
            "dataset": dataset,
            "partition": {"name": "labels", "labels_per_agent": 3},
            "model": {"name": "alexnet"},
            "algorithm": {"name": "mce-pl"},
        }
    )
    experiment = build(config)
    packed = []
    with build_simulator(experiment, torch.device("cpu")) as simulator:
        for number in range(1, rounds + 1):
            masks = simulator.play(Clock(number, rounds)).shared["mask"]  # [A, P]
            packed.append(np.packbits(masks.numpy(), axis=1))
            print(f"\rtraining: round {number} of {rounds}", end="", flush=True)
    print()
    return np.stack(packed), [layer.size for layer in experiment.network.layout.masked]


def best_ms(function: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = process_time()
        function()
        times.append(process_time() - start)
    return 1e3 * min(times)


def zstd_size(packed: bytes) -> str:
    """zstandard is not a dependency: a dash where it is missing."""
    if find_spec("zstandard") is None:
        return "-"
    return str(len(import_module("zstandard").ZstdCompressor(level=19).compress(packed)))


def line(retention: float, round: int, mask: Mask, layers: list[int], base_round: int | None, base: Mask | None) -> str:
    """One row of the table."""
    payload, older = {"mask": mask}, None if base is None else {"mask": base}
    schema = Schema.of(payload, layers)
    header, expected = FrameHeader(RUN_ID, 0, round, base_round), Expected(RUN_ID, schema)
    cost = frame_size(payload, schema, older)
    sent = mask if base is None or cost.kind == "keyframe" else mask ^ base
    frame = encode_frame(header, payload, schema, older)
    bound = entropy_bound(sent, layers)
    times = (
        best_ms(lambda: encode_frame(header, payload, schema, older)),
        best_ms(lambda: decode_frame(frame, expected, lambda _: older)),
        best_ms(lambda: frame_size(payload, schema, older)),
    )
    what = f"{cost.kind} {round}" if base is None else f"{cost.kind} {base_round}-{round}"
    cells = [
        f"{retention}",
        what,
        f"{np.count_nonzero(sent)}",
        f"{bound:.0f}",
        f"{len(frame)}",
        f"{cost.framing}",
        f"{100 * (cost.body / bound - 1):.1f} %",
        zstd_size(np.packbits(sent).tobytes()),
        f"{bitmap_size(schema)}",
        *(f"{time:.1f}" for time in times),
    ]
    return "| " + " | ".join(cells) + " |"


def pairs(rounds: int) -> Iterator[tuple[int | None, int]]:
    """Rounds to code: the first whole, then flips early, in the middle, at the end, and over a gap of five."""
    yield None, 1
    for later in sorted({2, 3, 10, rounds // 2, rounds} & set(range(2, rounds + 1))):
        yield later - 1, later
    if rounds > 6:
        yield rounds - 5, rounds


def whole_run(masks: list[Mask], layers: list[int]) -> tuple[int, int]:
    """Bytes on one directed link over all rounds: frames, each against the round before, and bitmaps."""
    schema = Schema.of({"mask": masks[0]}, layers)
    bases = [None, *({"mask": mask} for mask in masks)]
    frames = sum(frame_size({"mask": mask}, schema, base).total for mask, base in zip(masks, bases[:-1], strict=True))
    return frames, len(masks) * bitmap_size(schema)


def main() -> None:
    parser = argparse.ArgumentParser(description="bytes and times of the mask codec on masks of a real run")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--retentions", type=float, nargs="+", default=RETENTIONS)
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--folder", help="where the dataset's files lie")
    options = parser.parse_args()
    dataset = {"name": options.dataset} | ({"folder": options.folder} if options.folder else {})
    packed, layers = real_masks(dataset, options.rounds, options.retentions)
    print(f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    print(f"{sum(layers)} weights in layers of {layers}; sizes in bytes, CPU times in ms\n")
    print(
        "| r | frame | ones or flips | bound | frame size | of it framing | body over bound | zstd -19 | bitmap "
        "| encode | decode | size only |"
    )
    print("|" + "---|" * 12)
    for agent, retention in enumerate(options.retentions):
        masks = [np.unpackbits(row[agent])[: sum(layers)].astype(np.bool_) for row in packed]
        for base, round_ in pairs(options.rounds):
            older = None if base is None else masks[base - 1]
            print(line(retention, round_, masks[round_ - 1], layers, base, older))
        frames, bitmaps = whole_run(masks, layers)
        print(f"| {retention} | all {options.rounds} rounds | | | {frames} | | | | {bitmaps} | | | |")


if __name__ == "__main__":
    main()
