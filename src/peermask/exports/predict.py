"""What an exported model answers: for the test samples of a dataset, for image files, and for rows of .npy files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor, nn

from peermask.compute.network import by
from peermask.config.choice import choose
from peermask.data import datasets
from peermask.data.dataset import Dataset, Task
from peermask.data.folders import read_pixels
from peermask.data.measures import FIGURES, confusion_of, macro_f1, metrics
from peermask.data.normalisation import Range
from peermask.errors import DataError, ExportError
from peermask.exports.reader import Model, open_model
from peermask.models.outputs import Readout

AT_ONCE = 500


@dataclass(frozen=True)
class Accuracy:
    """Result of `evaluate`.

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
        parts.append(model.outputs(inputs))
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
    """Check that the data is of the kind a model takes."""
    shape, classes, inputs = model.shape, len(model.classes), model.inputs
    if dataset.shape != shape or len(dataset.classes) != classes:
        raise ExportError(
            f"{model.name} takes inputs of {by(shape)} in {classes} classes; "
            f"{dataset.name} has {by(dataset.shape)} in {len(dataset.classes)}"
        )
    here = (str(dataset.train.inputs.dtype).removeprefix("torch."), dataset.task)
    if here != (inputs.dtype, inputs.task):
        raise ExportError(
            f"{model.name} takes {inputs.dtype} for {inputs.task}; {dataset.name} has {here[0]} for {here[1]}"
        )
    if dataset.vocabulary != inputs.vocabulary:
        raise ExportError(
            f"{model.name} has a vocabulary of {inputs.vocabulary}; {dataset.name} of {dataset.vocabulary}"
        )


# Inputs of an exported model from files, read without trust: rows of a .npy file, or an image.


def read_rows(path: Path, shape: tuple[int, ...], dtype: str, vocabulary: int | None = None) -> Tensor:
    """[n, *shape] of a model's own type: bytes, floats that are finite, or tokens."""
    try:
        with path.open("rb") as file:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            found, _, kind = read(file)
            there = path.stat().st_size - file.tell()
        if kind.hasobject or kind.kind not in "buif":
            raise ExportError(f"{path} holds {kind}; inputs are numbers")
        if math.prod(found) * kind.itemsize != there:
            raise ExportError(f"{path} claims {math.prod(found) * kind.itemsize} bytes and has {there}: it is damaged")
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise ExportError(f"{path} cannot be read: {reason}") from None
    if array.shape == shape:
        array = array[None]
    if array.shape[1:] != shape:
        raise ExportError(f"{path} has shape {array.shape}; the model takes [n, {', '.join(map(str, shape))}]")
    if dtype != "float32" and array.dtype.kind not in "bui":
        raise ExportError(f"{path} holds {array.dtype}; the model takes whole numbers ({dtype})")
    if dtype == "uint8" and array.size and not 0 <= array.min() <= array.max() <= 255:
        raise ExportError(f"{path} has values from {array.min()} to {array.max()}; the model takes 0 to 255")
    if vocabulary is not None and array.size and not 0 <= array.min() <= array.max() < vocabulary:
        raise ExportError(
            f"{path} has tokens from {array.min()} to {array.max()}; the model knows 0 to {vocabulary - 1}"
        )
    rows = torch.from_numpy(array.astype(dtype))
    if rows.is_floating_point() and not bool(torch.isfinite(rows).all()):
        raise ExportError(f"{path} has values that are NaN or infinite")
    return rows


def read_image(path: Path, shape: tuple[int, int, int]) -> Tensor:
    """[C, H, W] float32 in [0, 1]: grey or coloured as the model wants it, scaled to its size."""
    channels, height, width = shape
    try:
        pixels = read_pixels(path, channels, (height, width))
    except DataError as error:
        raise ExportError(str(error)) from error
    return torch.from_numpy(pixels.copy()).float() / 255


@dataclass(frozen=True)
class Prediction:
    """A model's answer to one input.

    Attributes:
        image: The file.
        classes: Most probable first; of a regression the names of its outputs.
        probabilities: Of each of them; of a regression the values, in the targets' units.
        row: Which input of a .npy file; None for an image.
        task: The model's.
    """

    image: Path
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]
    row: int | None = None
    task: str = "classification"


def predict(
    ticket: Path | str, images: Sequence[Path | str], top: int = 3, weights: Path | str | None = None
) -> list[Prediction]:
    """Classes by probability, or the values of a regression, of image files or raw inputs [n, ...] in .npy files."""
    model = open_model(ticket, weights=weights)
    predictions = []
    for path in map(Path, images):
        for row, inputs in _inputs(path, model):
            predictions.append(_prediction(path, row, model.outputs(inputs[None])[0], model, top))
    return predictions


def _inputs(path: Path, model: Model) -> Iterator[tuple[int | None, Tensor]]:
    """Raw inputs, as the model takes them."""
    shape, inputs = model.shape, model.inputs
    if path.suffix == ".npy":
        yield from enumerate(read_rows(path, shape, inputs.dtype, inputs.vocabulary))
        return
    if len(shape) != 3:
        raise ExportError(f"{path} is not an .npy file; the model takes inputs of {shape}, in a .npy file of [n, ...]")
    pixels = read_image(path, (shape[0], shape[1], shape[2]))  # [C, H, W] in [0, 1]
    how, whole = inputs.normalisation, inputs.dtype == "uint8"
    low, high = (how.low, how.high) if isinstance(how, Range) else (0.0, 255.0 if whole else 1.0)
    raw = low + pixels * (high - low)
    yield None, raw.round().clamp(0, 255).to(torch.uint8) if whole else raw


def _prediction(path: Path, row: int | None, outputs: Tensor, model: Model, top: int) -> Prediction:
    if model.task == "regression":
        return Prediction(path, model.classes, tuple(outputs.tolist()), row, model.task)
    chances = outputs.softmax(0) if model.task == "classification" else outputs.sigmoid()
    values, places = chances.topk(min(top, model.answers))
    names = tuple(model.classes[place] for place in places.tolist())
    return Prediction(path, names, tuple(values.tolist()), row, model.task)
