"""What one mask tells a neighbour about the data it was learned from, on the embedded digits.

    python -m benchmarks.privacy [--algorithm mce-pl] [--labels 3] [--rounds 150] [--seeds 3]

The neighbour holds what every agent of the fleet holds: the frozen weights, and the last mask it was sent. Weights
under the mask are a model, and that model is asked

    labels       with probe images, the test images or mere noise: the labels it gives much probability to on average,
                 cut at the largest drop, are taken for those its owner has
    membership   by its loss on an image: lower on those it was trained on. AUC of training images against test images
                 of the same labels; 0.5 is a guess
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from peermask.algorithms.contract import Clock
from peermask.config.file import make_config
from peermask.masks.masker import Masker
from peermask.run.assemble import build_simulator
from peermask.run.build import Experiment, build
from peermask.streams import stream

AGENTS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", default="mce-pl", choices=("mce-pl", "accord"))
    parser.add_argument("--labels", type=int, default=3, help="labels of every agent, of ten")
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    recovered: dict[str, list[bool]] = {"test images": [], "noise": []}
    auc, accuracy = [], []
    for seed in range(options.seeds):
        experiment = build(
            make_config(
                {
                    "seed": seed,
                    "agents": AGENTS,
                    "rounds": options.rounds,
                    "partition": {"name": "labels", "labels_per_agent": options.labels},
                    "algorithm": options.algorithm,
                }
            )
        )
        models, score = received_models(experiment)
        accuracy.append(score)
        data = experiment.dataset
        images = data.gather(data.test, torch.arange(len(data.test.targets))[None])[0][0]  # [B, C, H, W]
        noise = torch.from_numpy(stream(seed, "privacy").normal(images.numel()).astype(np.float32)).view_as(images)
        for kind, probes in (("test images", images), ("noise", noise)):
            recovered[kind] += [
                guessed_labels(experiment, model, probes) == set(own.labels)
                for model, own in zip(models, experiment.samples, strict=True)
            ]
        auc += [membership(experiment, models, agent) for agent in range(AGENTS)]
    print(
        f"{options.algorithm}, {options.seeds} x {AGENTS} agents with {options.labels} labels, {options.rounds} rounds"
    )
    print(f"test accuracy of the agents: {np.mean(accuracy):.3f}")
    for kind, right in recovered.items():
        print(f"label set recovered from one mask, probing with {kind}: {sum(right)} of {len(right)} agents")
    print(f"membership of an image: mean AUC {np.mean(auc):.2f}, of single agents {min(auc):.2f} to {max(auc):.2f}")


def received_models(experiment: Experiment) -> tuple[Tensor, float]:
    """[N, P]: the frozen weights under the last mask that each agent sent; and the agents' own mean accuracy."""
    rounds = experiment.config.rounds
    simulator = build_simulator(experiment, torch.device("cpu"))
    with simulator:
        for number in range(1, rounds + 1):
            sent = simulator.play(Clock(number, rounds)).shared["mask"]  # [N, P_w]
        accuracy = float(simulator.test().main.nanmean())
    masker = Masker(experiment.network.layout, experiment.frozen.values, experiment.config.mask)
    return masker.model(sent, experiment.agents.keep), accuracy


def guessed_labels(experiment: Experiment, model: Tensor, probes: Tensor) -> set[int]:
    """Labels before the largest drop of mean probability."""
    mean = experiment.network.outputs(model[None], probes[None])[0].softmax(-1).mean(0)  # [classes]
    ranked, order = mean.log().sort(descending=True)
    drop = int((ranked[:-1] - ranked[1:]).argmax())
    return set(order[: drop + 1].tolist())


def membership(experiment: Experiment, models: Tensor, agent: int) -> float:
    """AUC of -loss: the chance that a training image has a lower loss than another of the same labels."""
    own, data = experiment.samples[agent], experiment.dataset
    losses = []
    for split, index in ((data.train, own.train), (data.test, own.test)):
        images, labels = data.gather(split, torch.from_numpy(index)[None])
        logits = experiment.network.outputs(models[agent : agent + 1], images)  # [1, B, classes]
        losses.append(F.cross_entropy(logits[0], labels[0], reduction="none"))
    inside, outside = losses
    return float((inside[:, None] < outside).float().mean() + 0.5 * (inside[:, None] == outside).float().mean())


if __name__ == "__main__":
    main()
