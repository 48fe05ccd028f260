"""Figures and loss of personal models on their own samples, and the tables of evaluations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peermask.compute.network import Network
from peermask.data.dataset import Dataset, Split, Task
from peermask.data.measures import FIGURES, macro_f1, metrics
from peermask.files import write_atomically
from peermask.models.outputs import Readout, among
from peermask.store.folder import RunFolder
from peermask.store.table import append_rows
from peermask.task import figure_name, format_figure

SAMPLES_AT_ONCE = 500  # inputs of an agent in one forward pass: enough to fill a GPU, small enough to fit
MOST_CLASSES = 50  # classes up to which it is counted which label was taken for which
SAMPLES_AT_ONCE_ON_CPU = 250  # inputs: their intermediate results fit into the caches of a core

Answer = Callable[[Tensor, Tensor, Tensor], None]  # outputs [A, B, O], targets [A, B, ...], valid [A, B]


@dataclass(frozen=True)
class Score:
    """Figures of A agents, [A] each; NaN for an agent without samples."""

    figures: dict[str, Tensor]  # by name; the first is the one that counts
    loss: Tensor  # mean, over all labels for any readout
    confusion: Tensor | None = None  # [A, classes, classes] how often a label (row) was answered as one (column)

    @property
    def main(self) -> Tensor:
        """The figure that counts, larger if better: accuracy, F1 or R²."""
        return next(iter(self.figures.values()))

    @property
    def headline(self) -> str:
        """`accuracy 93.1 %`: the mean over agents of the figure that counts."""
        name = next(iter(self.figures))
        return f"{figure_name(name)} {format_figure(name, float(self.main.nanmean()))}"

    def rows(self) -> Tensor:
        """One row for each agent: figures, loss, counts."""
        figures = torch.stack([*self.figures.values(), self.loss], 1)
        return figures if self.confusion is None else torch.cat([figures, self.confusion.flatten(1)], 1)

    def like(self, rows: Tensor) -> Score:
        """Make the same figures of other agents from their `rows`."""
        *figures, loss = rows[:, : len(self.figures) + 1].unbind(1)
        counts = rows[:, len(self.figures) + 1 :]
        confusion = None if self.confusion is None else counts.unflatten(1, self.confusion.shape[1:])
        return Score(dict(zip(self.figures, figures, strict=True)), loss, confusion)


def evaluate(
    network: Network,
    params: Tensor,
    dataset: Dataset,
    split: Split,
    indices: Sequence[NDArray[np.int64]],
    counts: Tensor,
    readout: Readout = "all",
    further: Sequence[str] = (),
) -> Score:
    """Evaluate A models on their agents' samples of a split; `counts` [A, classes] are of the labels in training."""
    tally = Tally(counts, readout) if dataset.has_labels else None
    named = (*(() if tally else FIGURES[dataset.task]), *further)
    buffer = OutputBuffer(dataset, counts, readout) if named else None
    watchers = [watcher.add for watcher in (tally, buffer) if watcher is not None]
    loss = mean_losses(network, params, dataset, split, indices, watchers)
    figures = tally.figures() if tally else {}
    if buffer is not None:
        figures |= {name: buffer.measure(name).to(loss) for name in named if name not in figures}
    return Score(figures, loss, tally.confusion if tally else None)


def mean_losses(
    network: Network,
    params: Tensor,
    dataset: Dataset,
    split: Split,
    indices: Sequence[NDArray[np.int64]],
    watchers: Sequence[Answer],
) -> Tensor:
    """Mean loss of each agent, [A], in passes whose outputs every watcher gets."""
    device = params.device
    sizes = torch.tensor([len(places_of_agent) for places_of_agent in indices], device=device)  # [A]
    loss = torch.zeros(len(params), device=device)
    at_once = SAMPLES_AT_ONCE_ON_CPU if device.type == "cpu" else SAMPLES_AT_ONCE
    # Agents whose samples are used up repeat any sample; these are not counted. All places go to a GPU in one copy:
    # it has the whole evaluation to do before it is waited for.
    width = max(map(len, indices))
    padded = np.zeros((len(indices), width), np.int64)
    for row, places_of_agent in zip(padded, indices, strict=True):
        row[: len(places_of_agent)] = places_of_agent
    places = torch.from_numpy(padded).to(device)  # [A, S]
    for start in range(0, width, at_once):
        index = places[:, start : start + at_once]  # [A, B]
        valid = torch.arange(start, start + index.shape[1], device=device) < sizes[:, None]  # [A, B]
        inputs, targets = dataset.gather(split, index)
        outputs = network.outputs(params, inputs)  # [A, B, O]
        for watcher in watchers:
            watcher(outputs, targets, valid)
        each = network.loss(outputs.flatten(0, 1), targets.flatten(0, 1)).view_as(valid)
        loss += (each * valid).sum(1)
    return loss / sizes  # 0 / 0 is NaN, as it should be


class Tally:
    """Right answers by label, from which accuracies follow: whole numbers, exact in any order."""

    def __init__(self, counts: Tensor, readout: Readout) -> None:
        self.counts, self.of_all = counts, readout == "all"
        self.own_labels = (counts > 0)[:, None]  # [A, 1, classes]
        # For each label how many samples there are, and how many answers of either kind are right.
        self.right = torch.zeros(*counts.shape, 3, device=counts.device)
        self.answered = torch.zeros_like(counts)  # how many answers are this label, by the readout that counts
        classes = counts.shape[1]
        self.confusion = counts.new_zeros(len(counts), classes, classes) if classes <= MOST_CLASSES else None

    def add(self, logits: Tensor, labels: Tensor, valid: Tensor) -> None:
        answers = torch.stack([labels, logits.argmax(-1), among(logits, self.own_labels).argmax(-1)], -1)  # [A, B, 3]
        right = (answers == labels[..., None]) & valid[..., None]
        self.right.scatter_add_(1, labels[..., None].expand_as(right), right.float())
        answered = answers[..., 1 if self.of_all else 2]
        self.answered.scatter_add_(1, answered, valid.to(self.answered))
        if self.confusion is not None:
            places = labels * self.confusion.shape[-1] + answered  # [A, B]
            self.confusion.flatten(1).scatter_add_(1, places, valid.to(self.confusion))

    def figures(self) -> dict[str, Tensor]:
        samples, *right_by_label = self.right.unbind(-1)  # [A, classes] each
        accuracy_all, accuracy_own = (right.sum(1) / samples.sum(1) for right in right_by_label)
        right = right_by_label[0 if self.of_all else 1]
        return {
            "accuracy": accuracy_all if self.of_all else accuracy_own,  # by the readout that counts
            "accuracy_all": accuracy_all,  # the answer is the largest of all logits
            "accuracy_own": accuracy_own,  # the answer is the largest among the labels an agent trains on
            "accuracy_weighted": weighted_accuracy(
                right, samples, self.counts
            ),  # labels as often as in the training data
            "macro_f1": macro_f1(right, self.answered, samples).to(right),
        }


class OutputBuffer:
    """All outputs of every agent, for metrics that need them at once."""

    def __init__(self, dataset: Dataset, counts: Tensor, readout: Readout) -> None:
        self.dataset, self.agents = dataset, len(counts)
        self.own_labels = (counts > 0)[:, None] if readout == "own" else None  # [A, 1, classes]
        self.outputs: list[Tensor] = []
        self.targets: list[Tensor] = []
        self.valid: list[Tensor] = []

    def add(self, outputs: Tensor, targets: Tensor, valid: Tensor) -> None:
        answers = outputs if self.own_labels is None else among(outputs, self.own_labels)
        self.outputs.append(self.dataset.unscale(answers))
        self.targets.append(self.dataset.unscale(targets))
        self.valid.append(valid)

    def measure(self, name: str) -> Tensor:
        """Measure each agent's metric, [A]; NaN without samples."""
        if not self.valid:
            return torch.full((self.agents,), torch.nan)
        outputs, targets, valid = (torch.cat(parts, 1) for parts in (self.outputs, self.targets, self.valid))
        measured = torch.full((self.agents,), torch.nan, dtype=torch.float64, device=outputs.device)
        for agent, real in enumerate(valid):
            if bool(real.any()):
                measured[agent] = metrics[name].make(outputs[agent][real], targets[agent][real])
        return measured


def weighted_accuracy(right: Tensor, samples: Tensor, counts: Tensor) -> Tensor:
    """Σ_c f_c right_c / samples_c, with f the shares of the training data among the labels that have samples.

    All [A, classes]; gives [A].
    """
    present = counts * (samples > 0)
    return (present * right / samples.clamp(min=1)).sum(1) / present.sum(1)


def figures_of(task: Task, further: Sequence[str] = ()) -> tuple[str, ...]:
    """Names of an agent's figures, the one that counts first."""
    return tuple(dict.fromkeys((*FIGURES[task], *further)))


def metric_columns(figures: Sequence[str]) -> tuple[str, ...]:
    """List the columns of metrics.csv."""
    main, *others = figures
    of_main = ("train_loss", f"validation_{main}", "validation_loss", f"test_{main}", "test_loss")
    further = (f"{split}_{name}" for split in ("test", "validation") for name in others)
    return ("round", "agent", *of_main, "density", "sent_bytes", "seconds", f"unmixed_{main}", *further)


METRICS = metric_columns(figures_of("classification"))
CONFUSION = ("round", "agent", "label", "answer", "samples")


@dataclass(frozen=True)
class Evaluation:
    """Evaluation of all N agents after a round."""

    round: int
    train_loss: Tensor  # [N] mean since the evaluation before
    validation: Score
    test: Score
    density: Tensor  # [N]
    sent_bytes: Tensor  # [N] so far, over all of an agent's links
    seconds: float = nan  # since the start, over all resumptions
    unmixed_accuracy: Tensor | None = None  # [N] of the models as they were sent, where that was asked for

    @property
    def plateau_signal(self) -> float:
        """Mean of the figure that counts on held-out samples, or minus the training loss where nothing is held out."""
        main = self.validation.main
        known = main[~main.isnan()]
        return float(known.mean()) if len(known) else -float(self.train_loss.mean())


def write_evaluation(folder: RunFolder, evaluation: Evaluation, ids: Sequence[int]) -> None:
    """One row per agent, with its number."""
    test, validation, unmixed = evaluation.test, evaluation.validation, evaluation.unmixed_accuracy
    _, *others = test.figures
    columns = (
        evaluation.train_loss,
        validation.main,
        validation.loss,
        test.main,
        test.loss,
        evaluation.density,
        evaluation.sent_bytes,
        torch.full_like(evaluation.sent_bytes, evaluation.seconds),
        torch.full_like(evaluation.sent_bytes, nan) if unmixed is None else unmixed,
        *(test.figures[name] for name in others),
        *(validation.figures[name] for name in others),
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    shown = ([evaluation.round, agent, *map(number_text, row)] for agent, row in zip(ids, rows, strict=True))
    append_rows(folder.metrics, metric_columns(tuple(test.figures)), shown)


def write_confusion(folder: RunFolder, evaluation: Evaluation, ids: Sequence[int]) -> None:
    """Write which labels were taken for which, one row for each pair that occurs; it replaces an earlier table."""
    counts = evaluation.test.confusion
    if counts is None:
        return
    pairs = counts.nonzero().tolist()  # [pairs, 3]
    rows = [[evaluation.round, ids[i], label, answer, int(counts[i, label, answer])] for i, label, answer in pairs]
    lines = [CONFUSION, *rows]
    write_atomically(folder.confusion, "".join(",".join(map(str, line)) + "\n" for line in lines).encode())


def number_text(value: float) -> int | str:
    """Integers unchanged, other numbers with the digits of a float32."""
    return int(value) if float(value).is_integer() else f"{value:.7g}"
