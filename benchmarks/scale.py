"""What an agent costs as agents become many, in one process and in two ranks: `python -m benchmarks.scale`.

    python -m benchmarks.scale [--agents 100 1000 10000] [--graphs ring random-regular] [--algorithm mce-pl]
                               [--turns 3] [--rounds 2] [--device cpu]

Digits, an MLP, one batch an agent and round, bytes counted, nothing evaluated. The contenders, one process with a
thread for each core and two ranks with the cores divided between them, take turns of some rounds, so that a busy
machine slows both alike. Each has processes of its own, so that memory is its own: what they hold at most, less what
they held before there was any agent. CPU time is that of all their threads, which others on the machine disturb less
than the time on the clock. The exchange is all that passes between ranks, with what packing and waiting for
each other takes. With `--device cuda` two ranks share the GPU, or have one each where there are two.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from peermask.algorithms.contract import Clock
from peermask.config.file import make_config
from peermask.run.assemble import agents_at_once, build_simulator
from peermask.run.build import Experiment, build
from peermask.run.exchange import Exchange, LocalExchange
from peermask.run.rank_exchange import RankExchange, payload_width
from peermask.run.rank_group import Ranks, join_ranks, own_device
from peermask.run.rendezvous import Place, listen
from peermask.store.folder import RunFolder

CONTENDERS = {"one process": 1, "two ranks": 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--graphs", nargs="+", default=["ring", "random-regular"])
    parser.add_argument("--algorithm", default="mce-pl")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=2, help="rounds in a turn, of the fewest agents not counted")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--play", help=argparse.SUPPRESS)  # what the benchmark starts: one rank of a contender
    options = parser.parse_args()
    if options.play:
        play(json.loads(options.play))
        return
    where = torch.cuda.get_device_name() if options.device.startswith("cuda") else f"{os.cpu_count()} cores"
    print(f"{platform.machine()}, {where}, Python {platform.python_version()}, PyTorch {torch.__version__}")
    print(f"{options.algorithm}; medians of {options.turns} turns; ms, kB and bytes between ranks per agent\n")
    print("| graph | agents | contender | ms a round | against one process | CPU ms | memory | exchange | sent |")
    print("|---" * 9 + "|")
    for graph in options.graphs:
        for agents in options.agents:
            compare(graph, agents, options)


def compare(graph: str, agents: int, options: argparse.Namespace) -> None:
    settings = {
        "agents": agents,
        "rounds": 10_000,
        "batch_size": 32,
        "retention": 0.3,
        "graph": {"name": graph, **({"degree": 4} if graph == "random-regular" else {})},
        "partition": {"name": "everything"},
        "data": {"fraction": 0.02, "validation": 0.0},
        "model": {"name": "mlp", "hidden": [32]},
        "algorithm": options.algorithm,
    }
    rounds = max(options.rounds, 1000 * options.rounds // agents)
    with ExitStack() as stack:
        playing = {
            name: stack.enter_context(Contender(settings, size, options.device)) for name, size in CONTENDERS.items()
        }
        turns = [{name: one.turn(rounds) for name, one in playing.items()} for _ in range(options.turns + 1)][1:]
        held = {name: one.memory() for name, one in playing.items()}
    for name in CONTENDERS:
        seconds = [turn[name]["seconds"] / rounds for turn in turns]
        ratios = [turn[name]["seconds"] / turn["one process"]["seconds"] for turn in turns]
        shares = [turn[name]["exchange"] / turn[name]["seconds"] for turn in turns]
        cells = [
            f"{1e3 * statistics.median(seconds) / agents:.3f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            f"{1e3 * statistics.median(turn[name]['cpu'] for turn in turns) / rounds / agents:.3f}",
            f"{held[name] / agents / 1e3:.0f}",
            f"{100 * statistics.median(shares):.1f} %",
            f"{turns[0][name]['sent'] / agents:.0f}",
        ]
        print("| " + " | ".join([graph, str(agents), name, *cells]) + " |", flush=True)


class Contender:
    """Its processes, which wait for turns."""

    def __init__(self, settings: dict[str, Any], size: int, device: str) -> None:
        with listen("127.0.0.1") as free:
            port = free.getsockname()[1]
        self.processes = []
        for rank in range(size):
            given = {"settings": settings, "rank": rank, "size": size, "port": port, "device": device}
            command = [sys.executable, "-m", "benchmarks.scale", "--play", json.dumps(given)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self.processes.append(subprocess.Popen(command, text=True, **pipes))  # type: ignore[call-overload]
        self._ask("wait")

    def __enter__(self) -> Contender:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait(60)
            process.stdout.close()

    def turn(self, rounds: int) -> dict[str, float]:
        """As the slowest rank saw it; CPU time and bytes are those of all."""
        told = self._ask(f"play {rounds}")
        total = {key: sum(one[key] for one in told) for key in ("cpu", "sent")}
        return {**max(told, key=lambda one: one["seconds"]), **total}

    def memory(self) -> float:
        """Of all ranks together, in bytes."""
        return sum(one["memory"] for one in self._ask("memory"))

    def _ask(self, what: str) -> list[dict[str, float]]:
        for process in self.processes:
            process.stdin.write(what + "\n")
            process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in self.processes]


def play(given: dict[str, Any]) -> None:
    """One rank: rounds when asked for, from standard input."""
    size, rank = given["size"], given["rank"]
    place = Place(rank, size, rank, size, "127.0.0.1", given["port"])
    device = own_device(given["device"], place)
    with ExitStack() as stack:
        ranks = stack.enter_context(join_ranks(place, given["device"]))
        experiment = build(make_config(given["settings"]))
        before = _resident()
        exchange, step = stack.enter_context(ready(experiment, ranks, device))
        spent = [0.0]
        if isinstance(exchange, RankExchange):
            exchange._fill = timed(exchange._fill, spent)  # type: ignore[method-assign]
            for one in ("all_gather", "any"):
                setattr(ranks, one, timed(getattr(ranks, one), spent))
        number = 0
        for line in sys.stdin:
            what, _, rounds = line.partition(" ")
            told: dict[str, float] = {}
            if what == "play":
                spent[0], begun, used = 0.0, time.perf_counter(), time.process_time()
                for _ in range(int(rounds)):
                    number += 1
                    step(number)
                if device.type == "cuda":
                    torch.cuda.synchronize()
                taken, used = time.perf_counter() - begun, time.process_time() - used
                told = {"seconds": taken, "exchange": spent[0], "cpu": used, "sent": sent_in_a_round(exchange)}
                exchange.flush()
            elif what.strip() == "memory":
                most = torch.cuda.max_memory_allocated() if device.type == "cuda" else _most() - before
                told = {"memory": most}
            print(json.dumps(told), flush=True)


@contextmanager
def ready(
    experiment: Experiment, ranks: Ranks | None, device: torch.device
) -> Iterator[tuple[Exchange, Callable[[int], None]]]:
    """An exchange, and what plays a round by it: all that a run does, but for evaluations."""
    agents = experiment.config.agents
    rows = slice(None) if ranks is None else ranks.shards(agents)[ranks.rank]
    size = 1 if ranks is None else ranks.size
    chunk = agents_at_once(experiment, device, len(range(agents)[rows]), size)
    workers = max(1, (os.cpu_count() or 1) // size)
    with (
        tempfile.TemporaryDirectory() as folder,
        build_simulator(experiment, device, chunk, workers, rows) as simulator,
    ):
        run = RunFolder(Path(folder))
        exchange: Exchange
        if ranks is None:
            exchange = LocalExchange(experiment, run, simulator, {})
        else:
            exchange = RankExchange(ranks, experiment, run, simulator, {})

        def step(number: int) -> None:
            outcome = simulator.play(Clock(number, 10_000), exchange.move)
            exchange.all_gather(outcome.losses)
            exchange.count(number)
            if ranks is not None:
                ranks.any(False)

        yield exchange, step


def sent_in_a_round(exchange: Exchange) -> int:
    """Bytes from this rank to all others."""
    if not isinstance(exchange, RankExchange):
        return 0
    return payload_width(exchange.messages) * sum(len(rows) for rows in exchange.routes.outgoing.values())


def timed(function: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            spent[0] += time.perf_counter() - begun

    return call


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _most() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
