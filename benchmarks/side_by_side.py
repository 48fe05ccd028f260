"""What several seeds cost side by side on one GPU: `python -m benchmarks.side_by_side [--seeds 3] [--rounds 400]`.

Times one run of the paper's setting from its start to its result, several one after another, and several side by side,
and says whether each ended with the hash it has alone. Images are random: time does not depend on what they show.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.round_time import random_images, setting
from peermask.compute.device import pick_device
from peermask.compute.network import Gradient
from peermask.config.experiment import ExperimentConfig
from peermask.data.dataset import Dataset
from peermask.errors import RunError
from peermask.run.execution import Execution
from peermask.run.result import RunResult
from peermask.run.runner import run_experiment
from peermask.run.side_by_side import play_side_by_side


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--algorithm", default="mce-pl")
    options = parser.parse_args()
    try:
        device = pick_device(options.device)
    except RunError as error:
        parser.error(str(error))
    base = setting(options.agents, options.algorithm)
    update = {"rounds": options.rounds, "evaluation": base.evaluation.model_copy(update={"every": 40})}
    configs = [base.model_copy(update={**update, "seed": seed}) for seed in range(options.seeds)]
    dataset = random_images(options.agents)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
    print(f"{name}, torch {torch.__version__}, {options.agents} agents, {options.rounds} rounds, {options.algorithm}")
    played([configs[0].model_copy(update={"rounds": 5})], dataset, options.device)  # what is made once is made
    one, (alone, *_) = played(configs[:1], dataset, options.device)
    print(f"one run:                    {one:7.2f} s")
    after, separate = played(configs, dataset, options.device)
    print(f"{options.seeds} seeds, one after another: {after:7.2f} s, {after / one:.2f} x")
    beside, together = played(configs, dataset, options.device, beside=True)
    print(f"{options.seeds} seeds, side by side:      {beside:7.2f} s, {beside / one:.2f} x")
    same = [own.hash == other.hash for own, other in zip(separate, together, strict=True)]
    print(f"{sum(same)} of {len(same)} end with the hash they have alone")
    print(f"run twice alone, the first ends with the same hash: {alone.hash == separate[0].hash}")


def played(
    configs: Sequence[ExperimentConfig], dataset: Dataset, device: str, *, beside: bool = False
) -> tuple[float, list[RunResult]]:
    """Seconds, and what each run came to."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {id(config): Path(folder) / str(number) for number, config in enumerate(configs)}

        def play(config: ExperimentConfig, gradient: Gradient | None = None) -> RunResult:
            execution = Execution(device, gradient=gradient, final_checkpoint=False)
            return run_experiment(config, paths[id(config)], execution=execution, dataset=dataset)

        begun = time.perf_counter()
        results = play_side_by_side(configs, play) if beside else [play(config) for config in configs]
        seconds = time.perf_counter() - begun
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return seconds, [result for result in results if isinstance(result, RunResult)]


if __name__ == "__main__":
    main()
