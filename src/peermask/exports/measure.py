"""What an exported model reaches on the test samples of a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from peermask.compute.network import by
from peermask.config.choice import choose
from peermask.data import datasets
from peermask.data.dataset import Dataset, Task
from peermask.data.measures import FIGURES, confusion_of, macro_f1, metrics
from peermask.errors import ExportError
from peermask.exports.reader import Model, open_model
from peermask.models.outputs import Readout

AT_ONCE = 500


@dataclass(frozen=True)
class Accuracy:
    """What `evaluate` found.

    Attributes:
        right: Answers that were right, of `samples`; 0 for a task without labels, as the next two.
        samples: Test samples of the dataset.
        own_right: Answers that were right, of the labels that the agent learned.
        own_samples: Test samples of those labels.
        readout: The model's, by which it answered.
        task: The model's.
        figures: Those of the task over all samples, such as "macro_f1" or "mae"; "macro_f1_own" is over samples of the
            labels that the agent learned, as a run computes its "macro_f1".
        confusion: [classes, classes] of a classification: how often a label (row) was answered as one (column).
    """

    right: int
    samples: int
    own_right: int
    own_samples: int
    readout: Readout
    task: Task = "classification"
    figures: dict[str, float] = field(default_factory=dict)
    confusion: Tensor | None = field(default=None, compare=False, repr=False)


def evaluate(
    ticket: Path | str,
    dataset: Dataset | Mapping[str, Any] | str,
    *,
    module: nn.Module | None = None,
    weights: Path | str | None = None,
) -> Accuracy:
    """Test an exported model on the test samples of a dataset.

    Args:
        ticket: A file that `export` wrote: .ticket, .onnx or .safetensors.
        dataset: A dataset, its name, or a table with its name and options as in a config.
        module: The network, if the run was given one of your own.
        weights: The file that `frozen.from` named, if the run was over given weights and this is a ticket.

    Returns:
        How many samples were right, of all and of the labels that the agent learned, and the figures of its task.

    Raises:
        ExportError: The file is not an exported model, or its inputs and classes are not those of the dataset.

    Examples:
        >>> import peermask
        >>> config = peermask.make_config({"agents": 4, "rounds": 2, "retention": 0.3, "model": "mlp"})
        >>> result = peermask.run_experiment(config, "run")
        >>> exported = peermask.export(result, agent=3, to="agent3.ticket")
        >>> peermask.evaluate("agent3.ticket", "digits").samples
        360
    """
    if not isinstance(dataset, Dataset):
        chosen = choose(datasets, "dataset", dataset)
        dataset = datasets[chosen.name].make(**dict(chosen.options))
    model = open_model(ticket, module, weights)
    _check(model, dataset)
    task = model.task
    parts = []
    for start in range(0, len(dataset.test), AT_ONCE):
        inputs = dataset.test.inputs[start : start + AT_ONCE]
        parts.append(model.outputs(dataset.normalise(inputs) if model.inputs is None else inputs))
    outputs, targets = torch.cat(parts), dataset.test.targets  # [n, O]
    if task != "classification":
        figures = {name: float(metrics[name].make(outputs, targets)) for name in FIGURES[task]}
        return Accuracy(0, len(outputs), 0, 0, model.readout, task, figures)
    confusion = confusion_of(outputs, targets, len(model.classes))
    hits = outputs.argmax(1) == targets  # [n]
    own = torch.isin(targets, torch.tensor(model.labels, dtype=torch.int64))
    f1, f1_own = (
        float(macro_f1(counts.diagonal(), counts.sum(0), counts.sum(1)))
        for counts in (confusion, confusion_of(outputs[own], targets[own], len(model.classes)))
    )
    return Accuracy(
        *(int(hits.sum()), len(hits), int((hits & own).sum()), int(own.sum()), model.readout, task),
        {"accuracy": float(hits.float().mean()), "macro_f1": f1, "macro_f1_own": f1_own},
        confusion,
    )


def _check(model: Model, dataset: Dataset) -> None:
    """That the data is of the kind a model takes."""
    shape, classes, inputs = model.shape, len(model.classes), model.inputs
    if dataset.shape != shape or len(dataset.classes) != classes:
        raise ExportError(
            f"{model.name} takes inputs of {by(shape)} in {classes} classes; "
            f"{dataset.name} has {by(dataset.shape)} in {len(dataset.classes)}"
        )
    if inputs is None:
        return
    here = (str(dataset.train.inputs.dtype).removeprefix("torch."), dataset.task)
    if here != (inputs.dtype, inputs.task):
        raise ExportError(
            f"{model.name} takes {inputs.dtype} for {inputs.task}; {dataset.name} has {here[0]} for {here[1]}"
        )
    if dataset.vocabulary != inputs.vocabulary:
        raise ExportError(
            f"{model.name} has a vocabulary of {inputs.vocabulary}; {dataset.name} of {dataset.vocabulary}"
        )
