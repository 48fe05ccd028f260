"""How long a round of the paper's setting takes, and where the time goes: `python -m benchmarks.round_time`.

Prints figures and asserts nothing. Images are random: time does not depend on what they show.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import count

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from benchmarks.compare import Figures, add_option
from benchmarks.gradient_paths import time_others
from peermask.algorithms.contract import Clock
from peermask.compute.device import fast_float32, pick_device
from peermask.config.experiment import ExperimentConfig
from peermask.config.file import make_config
from peermask.data.arrays import from_arrays
from peermask.data.dataset import Dataset
from peermask.errors import RunError
from peermask.masks.select import top_fraction_by_layer
from peermask.models.architectures import models
from peermask.run.assemble import build_simulator
from peermask.run.build import build
from peermask.run.simulator import Simulator
from peermask.wire.cost import message_cost

RECORDING = 8  # rounds after which all of a round is recorded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--many", type=int, default=0, help="also time a round of this many agents")
    parser.add_argument("--algorithm", default="mce-pl")
    parser.add_argument("--model", default="alexnet", choices=["alexnet", "resnet18", "cnn", "mlp"])
    parser.add_argument("--against", help="another algorithm, whose rounds are timed in turn with these")
    parser.add_argument(
        "--first",
        type=int,
        default=1,
        help="number of the first round, of 10,000: 6000 is after accord's personal masks start",
    )
    parser.add_argument("--profile", action="store_true", help="also list the kernels of a round by time (CUDA)")
    parser.add_argument("--issue", action="store_true", help="issue every launch of a round, without CUDA graphs")
    parser.add_argument("--general", action="store_true", help="also time the path for arbitrary modules")
    parser.add_argument("--others", action="store_true", help="also time gradients by other means (CUDA)")
    add_option(parser)
    options = parser.parse_args()
    try:
        device = pick_device(options.device)
    except RunError as error:
        parser.error(str(error))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    print(
        f"{name}, torch {torch.__version__}, {options.agents} agents, {options.model}, batch 128, {options.algorithm}"
    )
    dataset, figures = random_images(options.agents), Figures.begin(name)
    with fast_float32():
        base = time_rounds(dataset, options, device, options.agents)
        figures.add("a round", base * 1e3, "ms")
        if options.against:
            ratio = in_turn(dataset, options, device)
            print(f"\na round of {options.algorithm} against {options.against}'s: {ratio:.2f} x")
            figures.add(f"a round against {options.against}'s", ratio, "x")
        general = time_rounds(dataset, options, device, options.agents, general=True) if options.general else None
        if options.many:
            many = time_rounds(random_images(options.many), options, device, options.many)
            ratio = (many / options.many) / (base / options.agents)
            print(f"cost per agent and round, {options.many} agents against {options.agents}: {ratio:.2f} x")
            figures.add(f"an agent of {options.many} against one of {options.agents}", ratio, "x")
        time_selection(device)
        plain = time_plain_loop(options.model, dataset, device, options.agents, max(1, options.rounds // 10))
    print(f"plain loop over modules with torch.optim: {plain * 1e3:.1f} ms a round, {plain / base:.1f} x")
    figures.add("a round against the plain loop", base / plain, "x")
    if general is not None:
        print(f"general path (vmap): {general * 1e3:.1f} ms a round, {general / base:.1f} x")
        figures.add("a round against the general path", base / general, "x")
    figures.write(options.json)


def random_images(agents: int) -> Dataset:
    """Enough for every agent to fill a batch, and 3,000 test images of its three labels."""
    rng = np.random.default_rng(0)
    count = max(10_000, 200 * agents)
    images = rng.integers(0, 256, (count + 10_000, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(count + 10_000) % 10
    return from_arrays(images[:count], labels[:count], images[count:], labels[count:])


def in_turn(dataset: Dataset, options: argparse.Namespace, device: torch.device, turns: int = 5) -> float:
    """The ratio of two algorithms' round times, medians of readings that alternate."""
    readings: dict[str, list[float]] = {options.algorithm: [], options.against: []}
    with ExitStack() as stack:
        rounds = {}
        for name in readings:
            experiment = build(setting(options.agents, name, options.model), dataset)
            simulator = stack.enter_context(build_simulator(experiment, device))
            simulator.record()
            rounds[name] = partial(play_next, simulator, count(options.first))
            for _ in range(RECORDING):
                rounds[name]()
        for _ in range(turns):
            for name, one_round in rounds.items():
                readings[name].append(timed(one_round, options.rounds, device))
    ours, theirs = (statistics.median(values) for values in readings.values())
    return ours / theirs


def play_next(simulator: Simulator, numbers: Iterator[int]) -> None:
    simulator.play(Clock(next(numbers), 10_000))


def setting(agents: int, algorithm: str, model: str = "alexnet") -> ExperimentConfig:
    return make_config(
        {
            "agents": agents,
            "rounds": 10_000,
            "batch_size": 128,
            "retention": 0.3,
            "model": model,
            "algorithm": algorithm,
            "partition": {"name": "labels", "labels_per_agent": 3},
        }
    )


def time_rounds(
    dataset: Dataset, options: argparse.Namespace, device: torch.device, agents: int, general: bool = False
) -> float:
    experiment = build(setting(agents, options.algorithm, options.model), dataset)
    if general:
        experiment = replace(experiment, network=replace(experiment.network, stack=None))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with build_simulator(experiment, device) as simulator:
        if not options.issue:
            simulator.record()
        chunk = len(simulator.feeds[0].ids)
        print(f"\n{agents} agents, {'general' if general else 'fast'} path, {chunk} at once")
        number = options.first - 1

        def one_round() -> None:
            nonlocal number
            number += 1
            simulator.play(Clock(number, 10_000))

        for _ in range(0 if general or options.issue else RECORDING):
            one_round()
        each = timed(one_round, 3 if general else options.rounds, device)
        print(f"  a round, learn + exchange + fuse: {each * 1e3:8.2f} ms")
        if general and options.model != "alexnet":
            return each  # its parts, and above all a test, would take minutes
        if device.type == "cuda":
            print(f"    issued by the host in       {issued(one_round, options.rounds, device) * 1e3:8.2f} ms")
        time_parts(simulator, options.rounds, device, experiment.network.layout.sizes)
        if options.profile and device.type == "cuda":
            list_kernels(simulator)
        if options.others and device.type == "cuda" and not general:
            feed, params = simulator.feeds[0], simulator.algorithm.local_model(simulator.states[0])
            batch = feed.batch(Clock(1, 10_000))
            time_others(feed.network, params, batch, lambda work: timed(work, options.rounds, device))
        print(f"  testing {agents} agents on 3,000 images each: {timed(simulator.test, 3, device) * 1e3:8.2f} ms")
        if device.type == "cuda":
            print(f"  peak memory: {torch.cuda.max_memory_allocated() / 1e9:.2f} GB")
    return each


def time_parts(simulator: Simulator, rounds: int, device: torch.device, sizes: tuple[int, ...]) -> None:
    algorithm, feed, mixing = simulator.algorithm, simulator.feeds[0], simulator.mixings[0]
    clock, state = Clock(1, 10_000), simulator.states[0]
    batch = feed.batch(clock)
    params = algorithm.local_model(state)
    learned, _ = algorithm.learn(state, feed, clock)
    outcome = simulator.play(clock)
    shared = outcome.shared
    parts: dict[str, Callable[[], object]] = {
        "batch": lambda: feed.batch(clock),
        "personal models from masks": lambda: algorithm.local_model(state),
        "forward and backward": lambda: feed.network.gradient(params, batch),
        "learn, all of it": lambda: algorithm.learn(state, feed, clock),
        "fuse": lambda: algorithm.fuse(learned, shared, mixing, clock),
    }
    if shared:
        _, known = message_cost(shared, None, sizes)
        _, known = message_cost(simulator.play(Clock(2, 10_000)).shared, known, sizes)
        parts["counting bytes"] = lambda: message_cost(shared, known, sizes)
    for name, part in parts.items():
        print(f"    {name:28s}{timed(part, rounds, device) * 1e3:8.2f} ms")


def list_kernels(simulator: Simulator, rounds: int = 10) -> None:
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for number in range(1, rounds + 1):
            simulator.play(Clock(number, 10_000))
        torch.cuda.synchronize()
    kernels = sorted(recorded.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    total = sum(kernel.self_device_time_total for kernel in kernels) / rounds / 1e3
    print(f"      {total:8.3f} ms of work on the device, of it")
    for kernel in kernels[:20]:
        each = kernel.self_device_time_total / rounds / 1e3
        print(f"      {each:8.3f} ms in {kernel.count / rounds:5.1f} calls  {kernel.key[:80]}")


def time_selection(device: torch.device) -> None:
    # Of so many floats from 0 to 1 some are equal; where the threshold is among them, finding it takes longer.
    magnitude = torch.rand(20, 819_200, device=device, generator=torch.Generator(device).manual_seed(0))
    keep = torch.full((20, 1), 245_760, device=device)
    each = timed(lambda: top_fraction_by_layer(magnitude, keep, (819_200,)), 20, device)
    print(f"\ntop fraction of [20, 819200]: {each * 1e3:.3f} ms")
    if device.type == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            top_fraction_by_layer(magnitude, keep, (819_200,))
        print(f"  recorded, as in a round: {timed(graph.replay, 20, device) * 1e3:.3f} ms")
        sort = timed(lambda: magnitude.sort(dim=1), 20, device)
        print(f"  a sort of the same: {sort * 1e3:.3f} ms, {sort / each:.1f} x")


def time_plain_loop(model: str, dataset: Dataset, device: torch.device, agents: int, rounds: int) -> float:
    """What one would write by hand: a module and an optimiser per agent, one after another."""
    modules = [models[model].make((3, 32, 32), 10).to(device) for _ in range(agents)]
    optimisers = [torch.optim.SGD(module.parameters(), lr=0.01) for module in modules]
    images = dataset.normalise(dataset.train.inputs[:128]).to(device)
    labels = dataset.train.targets[:128].to(device)

    def one_round() -> None:
        for module, optimiser in zip(modules, optimisers, strict=True):
            optimiser.zero_grad()
            F.cross_entropy(nn.Module.__call__(module, images), labels).backward()
            optimiser.step()

    return timed(one_round, rounds, device)


def timed(work: Callable[[], object], times: int, device: torch.device) -> float:
    """Median seconds of a few batches, after a warm-up; a GPU is waited for."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    work()
    work()
    wait()
    spans = []
    for _ in range(3):
        begun = time.perf_counter()
        for _ in range(max(1, times // 3)):
            work()
        wait()
        spans.append((time.perf_counter() - begun) / max(1, times // 3))
    return statistics.median(spans)


def issued(work: Callable[[], object], times: int, device: torch.device) -> float:
    """Median seconds until a GPU that was idle has been told all it is to do."""
    spans = []
    for _ in range(max(1, times)):
        torch.cuda.synchronize(device)
        begun = time.perf_counter()
        work()
        spans.append(time.perf_counter() - begun)
    return statistics.median(spans)


if __name__ == "__main__":
    main()
