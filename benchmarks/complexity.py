"""Operations and time of MCE-PL's aggregation by agents, density of the graph and weights: is a round O(N² L p)?

    python -m benchmarks.complexity [--agents 10 20 40 80] [--p 0.2 0.4 0.8] [--weights 100000 200000 400000]

In a round every directed link adds one mask to its receiver's votes. Printed are the masks that are added, the median
time of a few rounds on one core, and the exponents of the fit time ~ N^a p^b L^c over what was varied. L stands for
the weights.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

import numpy as np
import torch

from peermask.graph.links import Links
from peermask.graph.sums import count_votes
from peermask.graph.topology import erdos_renyi
from peermask.streams import stream

ROUNDS = 7


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[10, 20, 40, 80])
    parser.add_argument("--p", type=float, nargs="+", default=[0.2, 0.4, 0.8])
    parser.add_argument("--weights", type=int, nargs="+", default=[100_000, 200_000, 400_000])
    options = parser.parse_args()
    if not all(2 <= agents <= 255 for agents in options.agents):
        parser.error("--agents: must be from 2 to 255, as votes are counted in a byte")
    if not all(0 < p <= 1 for p in options.p) or min(options.weights) < 1:
        parser.error("--p: must be above 0 and at most 1; --weights: at least 1")
    torch.set_num_threads(1)
    print(f"{'agents':>8} {'p':>6} {'weights':>9} {'masks added':>12} {'N(N - 1)p':>10} {'ms a round':>11}")
    measured = []
    for agents, p, weights in itertools.product(options.agents, options.p, options.weights):
        links = drawn(agents, p)
        seconds = time_of(links, weights)
        added = len(links.senders)
        print(f"{agents:8d} {p:6.2f} {weights:9d} {added:12d} {agents * (agents - 1) * p:10.0f} {1e3 * seconds:11.2f}")
        measured.append((agents, p, weights, added, seconds))
    logs = np.log(np.array(measured))  # [M, 5]
    varied = [place for place in range(3) if len(set(logs[:, place])) > 1]
    for name, place in (("masks added", 3), ("time", 4)):
        exponents, *_ = np.linalg.lstsq(np.column_stack([logs[:, varied], np.ones(len(logs))]), logs[:, place])
        print(f"{name} ~", *(f"{'NpL'[one]}^{exponent:.2f}" for one, exponent in zip(varied, exponents, strict=False)))


def drawn(agents: int, p: float) -> Links:
    """The links of a random graph, in both directions."""
    pairs = np.array(list(erdos_renyi(agents, stream(0, "graph", agents), p=p).edges), np.int64).reshape(-1, 2)
    return Links.between(np.concatenate([pairs[:, 0], pairs[:, 1]]), np.concatenate([pairs[:, 1], pairs[:, 0]]), agents)


def time_of(links: Links, weights: int) -> float:
    """Seconds of a round's additions, the median; masks are random, since time does not depend on them."""
    masks = torch.from_numpy(stream(0, "masks", len(links)).uniform(len(links) * weights) < 0.5).view(-1, weights)
    seconds = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        count_votes(links, masks, torch.uint8)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
