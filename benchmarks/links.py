"""What counting bytes costs where links change, on a GPU and on the cores of a CPU: `python -m benchmarks.links`.

    python -m benchmarks.links [--device cuda] [--agents 20] [--rounds 12]

AlexNet's masks at density 0.5, of which a twentieth flips often, on a random graph that is drawn anew every round, so
that hardly two receivers share a history. Both count the same messages, and must come to the same bytes.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np
import torch
from torch import Tensor

from peermask.graph.links import Links
from peermask.run.ledger import LinkHistories

ALEXNET = (4800, 204800, 819200, 196608, 1920)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=12, help="the first half of them is not timed")
    options = parser.parse_args()
    where = torch.cuda.get_device_name() if options.device.startswith("cuda") else "no GPU"
    print(f"{platform.machine()}, {os.cpu_count()} cores, {where}, PyTorch {torch.__version__}")
    devices = dict.fromkeys([options.device, "cpu"])
    histories = {device: LinkHistories() for device in devices}
    spent: dict[str, list[float]] = {device: [] for device in devices}
    lines, generator = [], torch.Generator().manual_seed(0)
    shape = (options.agents, sum(ALEXNET))
    rates = torch.where(torch.rand(shape, generator=generator) < 0.05, 0.2, 0.002)
    mask = torch.rand(shape, generator=generator) < 0.5
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for number in range(options.rounds):
            links, told = drawn(options.agents, number), {}
            for device, known in histories.items():
                begun, payload = synchronised(device), {"mask": mask.to(device)}
                cost = known.cost(
                    payload, links, ALEXNET, lambda function, *columns: list(pool.map(function, *columns))
                )
                told[device] = cost.coded_bytes.tolist()
                spent[device].append(synchronised(device) - begun)
            assert len({tuple(each) for each in told.values()}) == 1, f"round {number}: bytes differ"
            lines.append(len({id(h) for held in histories["cpu"].by_receiver.values() for h in held.values()}))
            mask = mask ^ flips(rates, generator)
    print("| counted on | histories | ms a round |\n|---|---|---|")
    for device, seconds in spent.items():
        print(f"| {device} | {lines[-1]} | {1e3 * median(seconds[options.rounds // 2 :]):.1f} |")


def drawn(agents: int, number: int) -> Links:
    """Every pair with probability 1/2, in both directions."""
    upper = np.triu(np.random.default_rng(number).random((agents, agents)) < 0.5, 1)
    receivers, senders = np.nonzero(upper | upper.T)
    return Links.between(receivers, senders, agents)


def flips(rates: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(rates.shape, generator=generator) < rates


def synchronised(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
