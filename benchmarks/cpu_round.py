"""A round on a CPU against the loop one would write by hand: `python -m benchmarks.cpu_round`.

The workload: Fashion-MNIST, 20 agents with 500 images of 3 labels each, a network of two 5x5 convolutions and two
linear layers, one batch of 64 per agent and round, then one exchange over a random graph with p = 0.5. Nothing is
evaluated. For a round's time the contenders take turns in one process, so that a busy machine slows all of them alike;
start-up and memory are measured in a process of each one's own. Prints and asserts nothing.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from typing import Protocol

import torch

CONTENDERS = ("plain-loop", "mce-pl", "dsgd")
ROUNDS_ALONE = 5  # memory has stopped growing by then


class Contender(Protocol):
    def __enter__(self) -> object: ...

    def __exit__(self, *_: object) -> None: ...

    def round(self) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3, help="rounds in a turn")
    parser.add_argument("--alone", choices=CONTENDERS, help="only play a few rounds of one; what the benchmark runs")
    options = parser.parse_args()
    if options.alone:
        play_alone(options.alone)
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    compare_start_and_memory()
    compare_rounds(options.turns, options.rounds)


def make(name: str) -> Contender:
    """Imports only what that one needs, so that its memory is its own."""
    if name == "plain-loop":
        from benchmarks.plain_loop import PlainLoop

        return PlainLoop()
    from benchmarks.simulated import Simulated

    return Simulated(name)


def play_alone(name: str) -> None:
    contender = make(name)
    with contender:
        for number in range(ROUNDS_ALONE):
            contender.round()
            if not number:
                print("first round", flush=True)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)


def compare_start_and_memory() -> None:
    peaks: dict[str, float] = {}
    for name in CONTENDERS:
        begun = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.cpu_round", "--alone", name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            started = since(begun)
            peaks[name] = int(process.stdout.readline()) / 1e3
        ratio = peaks[name] / peaks["plain-loop"]
        first = f"{started:5.1f} s from start to the end of the first round"
        print(f"{name:12s}{first}   {peaks[name]:.0f} MB at most, {ratio:.2f} x the plain loop's")


def compare_rounds(turns: int, rounds: int) -> None:
    contenders = {name: make(name) for name in CONTENDERS}
    spans: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for turn in range(turns + 1):
        for name, contender in contenders.items():
            with contender:
                started = time.perf_counter()
                for _ in range(rounds):
                    contender.round()
                if turn:  # the first is a warm-up
                    spans[name].append(since(started) / rounds)
    base = statistics.median(spans["plain-loop"])
    for name, taken in spans.items():
        median = statistics.median(taken)
        ratios = [own / other for own, other in zip(taken, spans["plain-loop"], strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name:12s}{median:8.3f} s a round   {median / base:.2f} x the plain loop ({spread} by turn)")


def since(begun: float) -> float:
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
