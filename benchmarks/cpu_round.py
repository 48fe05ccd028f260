"""A round on a CPU against the loop one would write by hand: `python -m benchmarks.cpu_round`.

The workload: Fashion-MNIST, 20 agents with 500 images of 3 labels each, a network of two 5x5 convolutions and two
linear layers, one batch of 64 per agent and round, then one exchange over a random graph with p = 0.5. Nothing is
evaluated. `--paper`: the paper's network, 4 agents, batch 128, random images; its plain loop exchanges nothing.

Every contender has a process of its own, and they take turns, so that a busy machine slows all of them alike. But
the plain loop's two threads wait for each other: on a busy machine compare CPU time of one thread (`--cpu-time`).
`--without use_winograd`, say, adds MCE-PL without that function of `compute/cpu_module.py`: what it is worth.
Prints and asserts nothing.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from contextlib import AbstractContextManager, nullcontext

import torch

from benchmarks.compare import Figures, add_option
from benchmarks.contenders import Round, paper_loop, plain_loop, simulated
from peermask.compute import cpu_module
from peermask.data.fashion_mnist import find_folder
from peermask.errors import DataError

PLAIN = "plain-loop"
REPLACEMENTS = ("use_winograd", "use_blocked_norms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=at_least_one, default=5)
    parser.add_argument("--rounds", type=at_least_one, default=3, help="rounds in a turn")
    parser.add_argument("--paper", action="store_true", help="the paper's network")
    parser.add_argument("--cpu-time", action="store_true", help="CPU seconds of one torch thread; for a busy machine")
    parser.add_argument("--without", nargs="*", default=[], choices=REPLACEMENTS)
    parser.add_argument("--play", help="one contender, as many rounds as each line of the input says; for the others")
    add_option(parser)
    options = parser.parse_args()
    if options.play:
        play(options.play, options.paper, options.cpu_time)
        return
    if not options.paper:
        try:
            find_folder()  # here: an error in a contender's process would be a traceback, and another of this one
        except DataError as error:
            sys.exit(f"cpu_round: {error}, or measure with --paper, which needs no dataset")
    vectors = torch.backends.cpu.get_cpu_capability()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {vectors}")
    names = [PLAIN, "mce-pl", "dsgd", *(f"mce-pl without {name}" for name in options.without)]
    figures = Figures.begin()
    flags = ["--paper"] * options.paper + ["--cpu-time"] * options.cpu_time
    compare([Playing(name, flags) for name in names], options.turns, options.rounds, figures)
    figures.write(options.json)


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def contender(name: str, paper: bool) -> AbstractContextManager[Round]:
    algorithm, _, without = name.partition(" without ")
    if without:
        setattr(cpu_module, without, lambda module: module)
    if name == PLAIN:
        return nullcontext(paper_loop() if paper else plain_loop())
    return simulated(algorithm, paper=paper)


def play(name: str, paper: bool, cpu_time: bool) -> None:
    """For each line of the input a line with the seconds that so many rounds took; at its end one with the memory."""
    clock = time.process_time if cpu_time else time.perf_counter
    if cpu_time:
        torch.set_num_threads(1)
    with contender(name, paper) as one_round:
        for line in sys.stdin:
            started = clock()
            for _ in range(int(line)):
                one_round()
            print(clock() - started, flush=True)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)


class Playing:
    """A contender in a process of its own, which has played a first round."""

    def __init__(self, name: str, flags: list[str]) -> None:
        self.name, begun = name, time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.cpu_round", "--play", name, *flags]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.rounds(1)
        self.first_round = time.perf_counter() - begun
        self.each: list[float] = []  # seconds a round, by turn

    def rounds(self, count: int) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(count, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def end(self) -> float:
        """The most memory it had, in MB."""
        told, _ = self.process.communicate()
        return int(told) / 1e3


def compare(contenders: list[Playing], turns: int, rounds: int, figures: Figures) -> None:
    for turn in range(turns + 1):
        for contender in contenders:
            taken = contender.rounds(rounds)
            if turn:  # the first is a warm-up
                contender.each.append(taken / rounds)
    plain = contenders[0].each
    most = [contender.end() for contender in contenders]
    for contender, memory in zip(contenders, most, strict=True):
        median = statistics.median(contender.each)
        ratios = [own / other for own, other in zip(contender.each, plain, strict=True)]
        print(
            f"{contender.name:34s}{median:7.3f} s a round, {median / statistics.median(plain):.2f} x the plain loop "
            f"({min(ratios):.2f} to {max(ratios):.2f} by turn); first round after {contender.first_round:.1f} s; "
            f"{memory:.0f} MB at most, {memory / most[0]:.2f} x"
        )
        figures.add(f"{contender.name}: a round", median, "s")
        figures.add(f"{contender.name}: against the plain loop", median / statistics.median(plain), "x")
        figures.add(f"{contender.name}: start to first round's end", contender.first_round, "s")
        figures.add(f"{contender.name}: memory at most", memory, "MB")


if __name__ == "__main__":
    main()
