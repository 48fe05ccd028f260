"""Bytes and milliseconds of the mask codec on masks of a real run: by contexts, without memory, and as bitmaps.

    python -m benchmarks.codec [--algorithm mce-pl] [--rounds 100] [--retentions 0.1 0.2 0.3 0.4] [--labels 3]
                               [--dataset cifar10] [--model alexnet] [--folder FOLDER]

One agent per retention, all linked, train together; what each shares is then coded as a node would: the first round
against the opening, every other against all rounds before. `memoryless` is what the same message takes if only the mask
of the round before is known (or nothing, in the first), as in version 1 of the format. A time is CPU time on one core,
the median over all rounds and the longest, each the least of three; what both ends then remember is part of it.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Sequence
from time import process_time
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from peermask.algorithms.contract import Clock
from peermask.config.file import make_config
from peermask.run.assemble import build_simulator, openings
from peermask.run.build import build
from peermask.wire import Expectation, FrameHeader, History, Schema, bitmap_size, decode_frame, encode_frame, frame_size
from peermask.wire.frame import history_after
from peermask.wire.mailbox import history_of_opening
from peermask.wire.sets import plan_set

RETENTIONS = (0.1, 0.2, 0.3, 0.4)
RUN_ID = b"codecrun"
REPEATS = 3

Mask = NDArray[np.bool_]
T = TypeVar("T")


def real_masks(options: argparse.Namespace) -> tuple[NDArray[np.uint8], NDArray[np.bool_] | None, list[int]]:
    """What every agent shared in every round, packed [rounds, agents, P / 8], the openings [agents, P], layer sizes."""
    agents, rounds = len(options.retentions), options.rounds
    dataset = {"name": options.dataset} | ({"folder": options.folder} if options.folder else {})
    config = make_config(
        {
            "name": "codec",
            "agents": agents,
            "rounds": rounds,
            "batch_size": 64,
            "retention": list(options.retentions),
            "graph": {"name": "complete"},
            "dataset": dataset,
            "partition": {"name": "labels", "labels_per_agent": options.labels},
            "model": {"name": options.model},
            "algorithm": {"name": options.algorithm},
        }
    )
    experiment = build(config)
    known = openings(experiment, experiment.agents)
    packed = []
    with build_simulator(experiment, torch.device("cpu")) as simulator:
        for number in range(1, rounds + 1):
            masks = simulator.play(Clock(number, rounds)).shared["mask"]  # [A, P]
            packed.append(np.packbits(masks.numpy(), axis=1))
            print(f"\rtraining: round {number} of {rounds}", end="", flush=True)
    print()
    return np.stack(packed), known["mask"].numpy() if known else None, list(experiment.network.layout.sizes)


def timed(function: Callable[[], T]) -> tuple[T, float]:
    """What it gives, and the least of a few times in ms."""
    times = []
    for _ in range(REPEATS):
        start = process_time()
        result = function()
        times.append(process_time() - start)
    return result, 1e3 * min(times)


def memoryless(mask: Mask, base: Mask | None, schema: Schema) -> int:
    """Bytes if only the mask of the round before is known."""
    keyframe = frame_size({"mask": mask}, schema)[0]
    layers = schema.leaves[0].layers
    whole = plan_set(mask, layers).size
    return keyframe if base is None else keyframe - whole + min(whole, plan_set(mask ^ base, layers).size)


def code(masks: Sequence[Mask], opening: Mask | None, layers: list[int]) -> NDArray[np.float64]:
    """Of every round [rounds, 4] bytes without memory and by contexts, and the ms to encode and to decode."""
    schema = Schema.of({"mask": masks[0]}, layers)
    expected = Expectation(RUN_ID, schema)
    held = None if opening is None else history_of_opening(RUN_ID, 0, schema, {"mask": opening})
    rows = []
    before: Mask | None = None
    for number, mask in enumerate(masks, 1):
        header = FrameHeader(RUN_ID, 0, number, None if held is None else held.name)

        def encode(
            header: FrameHeader = header, mask: Mask = mask, held: History | None = held
        ) -> tuple[bytes, History]:
            frame = encode_frame(header, {"mask": mask}, schema, held)
            return frame, history_after(frame, header.round, {"mask": mask}, schema, held)

        (frame, after), encoding = timed(encode)

        def decode(frame: bytes = frame, held: History | None = held) -> tuple[History, Mask]:
            header, payload = decode_frame(frame, expected, held)
            return history_after(frame, header.round, payload, schema, held), payload["mask"]

        (_, back), decoding = timed(decode)
        if not np.array_equal(back, mask):
            raise SystemExit(f"round {number} did not come back as it was")
        rows.append((memoryless(mask, before, schema), len(frame), encoding, decoding))
        held, before = after, mask
    return np.array(rows)


def show(retention: float, coded: NDArray[np.float64], schema: Schema) -> None:
    rounds = len(coded)
    for number in sorted({1, 2, 3, 5, 10, 20, 50, rounds} & set(range(1, rounds + 1))):
        old, new, encoding, decoding = coded[number - 1]
        cells = [number, f"{old:.0f}", f"{new:.0f}", f"{new / old:.2f}", f"{encoding:.1f}", f"{decoding:.1f}"]
        print("| " + " | ".join(map(str, [retention, *cells])) + " |")
    old, new = coded[:, :2].sum(0)
    median, longest = np.median(coded[:, 2:], 0), coded[:, 2:].max(0)
    times = [f"{middle:.1f} to {most:.1f}" for middle, most in zip(median, longest, strict=True)]
    cells = [f"all {rounds}", f"{old:.0f}", f"{new:.0f}", f"{new / old:.3f}", *times]
    print("| " + " | ".join(map(str, [retention, *cells])) + " |")
    first = coded[1:, :2].sum(0)
    print(f"| {retention} | without the first | {first[0]:.0f} | {first[1]:.0f} | {first[1] / first[0]:.3f} | | |")
    print(f"| {retention} | as bitmaps | | {rounds * bitmap_size(schema)} | | | |")


def main() -> None:
    parser = argparse.ArgumentParser(description="bytes and times of the mask codec on masks of a real run")
    parser.add_argument("--algorithm", default="mce-pl")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--retentions", type=float, nargs="+", default=RETENTIONS)
    parser.add_argument("--labels", type=int, default=3, help="of each agent")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--model", default="alexnet")
    parser.add_argument("--folder", help="where the dataset's files lie")
    options = parser.parse_args()
    packed, known, layers = real_masks(options)
    print(f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    print(f"{options.algorithm}, {sum(layers)} weights in layers of {layers}; sizes in bytes, CPU times in ms\n")
    print("| r | round | memoryless | by contexts | ratio | encode | decode |\n" + "|---" * 7 + "|")
    for agent, retention in enumerate(options.retentions):
        masks = [np.unpackbits(row[agent])[: sum(layers)].astype(np.bool_) for row in packed]
        coded = code(masks, None if known is None else known[agent], layers)
        show(retention, coded, Schema.of({"mask": masks[0]}, layers))


if __name__ == "__main__":
    main()
