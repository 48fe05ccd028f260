"""How often a ticket is right on the test samples of a dataset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from peermask.data import datasets
from peermask.data.dataset import Dataset
from peermask.errors import ExportError
from peermask.experiment.choice import choose
from peermask.exports.rebuild import rebuild
from peermask.exports.ticket import read_ticket
from peermask.models.readout import Readout

AT_ONCE = 500


@dataclass(frozen=True)
class Accuracy:
    right: int
    samples: int
    own_right: int  # of the labels the agent learned
    own_samples: int
    readout: Readout  # the ticket's, by which it answered


def evaluate(ticket: Path | str, dataset: Dataset | Mapping[str, Any] | str) -> Accuracy:
    """Test an exported model on the test samples of a dataset.

    Args:
        ticket: A ticket file, as written by `export`.
        dataset: A dataset, its name, or a table with its name and options as in a config.

    Returns:
        How many samples were right: of all, and of the labels that the agent learned.

    Raises:
        ExportError: The file is not a ticket, or its images and classes are not those of the dataset.

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
    read = read_ticket(ticket)
    shape, classes = read.header.architecture.shape, len(read.header.classes)
    if dataset.shape != shape or len(dataset.classes) != classes:
        raise ExportError(
            f"{ticket} takes images of {_by(shape)} in {classes} classes; "
            f"{dataset.name} has {_by(dataset.shape)} in {len(dataset.classes)}"
        )
    module = rebuild(read, str(ticket))
    right = []
    for start in range(0, len(dataset.test), AT_ONCE):
        images = dataset.normalise(dataset.test.images[start : start + AT_ONCE])
        with torch.no_grad():
            right.append(module(images).argmax(1) == dataset.test.labels[start : start + AT_ONCE])
    hits = torch.cat(right)  # [n]
    own = torch.isin(dataset.test.labels, torch.tensor(read.header.about.labels, dtype=torch.int64))
    return Accuracy(int(hits.sum()), len(hits), int((hits & own).sum()), int(own.sum()), read.header.readout)


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
