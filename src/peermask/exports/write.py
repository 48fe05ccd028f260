"""An agent's model to a file, in the form its suffix asks for: .ticket, .onnx or .safetensors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from peermask.data.dataset import Dataset
from peermask.errors import ExportError, RunError, nearest
from peermask.experiment.result import RunResult
from peermask.exports.make_ticket import make_ticket
from peermask.exports.personal import Personal, open_personal
from peermask.files import write_atomically
from peermask.reports.tables import bytes_human

SUFFIXES = (".onnx", ".safetensors", ".ticket")


@dataclass(frozen=True)
class Exported:
    path: Path
    size: int  # bytes
    lines: tuple[str, ...]  # what is worth knowing about it


def export(
    run: RunResult | Path | str,
    agent: int,
    to: Path | str,
    *,
    dataset: Dataset | None = None,
    module: nn.Module | None = None,
    force: bool = False,
) -> Exported:
    """Write one agent's personal model to a file, atomically.

    Args:
        run: A result, or its run folder.
        agent: Which agent.
        to: The file. Its suffix chooses the format: `.ticket` (seed and mask), `.onnx` or `.safetensors`.
        dataset: The dataset that was given to `run_experiment`, if one was and the run is read from disk.
        module: The module that was given to `run_experiment`, likewise.
        force: Whether to replace a file that exists.

    Returns:
        The path, the size in bytes, and lines worth printing.

    Raises:
        ExportError: The agent does not exist, its model has no such format, or the file cannot be written.

    Examples:
        >>> import peermask
        >>> config = peermask.make_config({"agents": 4, "rounds": 2, "retention": 0.3, "model": "mlp"})
        >>> result = peermask.run_experiment(config, "run")
        >>> peermask.export(result, agent=3, to="agent3.ticket").path.name
        'agent3.ticket'
    """
    path = Path(to)
    _check_target(path, force=force)
    result = run if isinstance(run, RunResult) else RunResult.open(run)
    warnings: list[str] = []
    given = result.dataset if dataset is None else dataset
    own = result.module if module is None else module
    personal = open_personal(result, agent, given, own, warnings.append)
    make = {".ticket": _ticket, ".onnx": _onnx, ".safetensors": _safetensors}[path.suffix]
    data, lines = make(personal)
    try:
        write_atomically(path, data)
    except RunError as error:
        reason = getattr(error.__cause__, "strerror", None) or error.__cause__
        raise ExportError(f"cannot write {path}: {reason}") from error
    return Exported(path, len(data), (*warnings, *lines))


def _check_target(path: Path, *, force: bool) -> None:
    """Before the work, so that a mistake costs no time."""
    if path.suffix not in SUFFIXES:
        raise ExportError(
            f"cannot export to {path.name!r}: unknown suffix {path.suffix!r}; {nearest(path.suffix, SUFFIXES)}"
        )
    if path.is_dir():
        raise ExportError(f"cannot write {path}: it is a folder")
    if path.exists() and not force:
        raise ExportError(f"{path} exists; give another name, or replace it with --force")
    if not path.parent.is_dir():
        raise ExportError(f"cannot write {path}: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise ExportError(f"cannot write {path}: the folder {path.parent} is read-only")


def _ticket(personal: Personal) -> tuple[bytes, tuple[str, ...]]:
    data = make_ticket(personal).encode()
    floats = 4 * personal.layout.total
    line = f"ticket of {bytes_human(len(data))}; the float32 model has {bytes_human(floats)}"
    return data, (f"{line} ({floats / len(data):.0f} times as much)",)


def _safetensors(personal: Personal) -> tuple[bytes, tuple[str, ...]]:
    tensors = {name: view.contiguous() for name, view in personal.layout.unflatten(personal.params).items()}
    data = safetensors.torch.save(tensors, metadata={key: str(value) for key, value in _about(personal).items()})
    kept = int((personal.params != 0).sum())
    return data, (f"{len(tensors)} tensors, {kept:,} of {personal.layout.total:,} values not zero",)


def _onnx(personal: Personal) -> tuple[bytes, tuple[str, ...]]:
    from peermask.exports.onnx import make_onnx  # its packages are optional

    made = make_onnx(personal.module(), personal.experiment.dataset.test.inputs, _about(personal))
    lines = [f"onnxruntime and PyTorch agree within {made.difference:.1g}"]
    if made.slim is None:
        full = made.full
        lines.append(f"exported unslimmed: {made.obstacle}")
        lines.append(
            f"{bytes_human(full.size)}, {full.parameters:,} parameters, {full.multiply_adds:,} multiply-adds, "
            f"{_latency(full.latency)} an input"
        )
        return made.data, tuple(lines)
    removed = ", ".join(f"{count} of layer {name}" for name, count in made.removed.items())
    lines.append(f"dead filters removed: {removed or 'there were none'}")
    before, after = made.full, made.slim
    for what, one, other in (
        ("size", bytes_human(before.size), bytes_human(after.size)),
        ("parameters", f"{before.parameters:,}", f"{after.parameters:,}"),
        ("multiply-adds", f"{before.multiply_adds:,}", f"{after.multiply_adds:,}"),
        ("latency", _latency(before.latency), _latency(after.latency)),
    ):
        lines.append(f"{what:<14}{one:>14} -> {other}")
    return made.data, tuple(lines)


def _latency(seconds: float) -> str:
    """Below a tenth of a millisecond a call costs more than the network."""
    return "under 0.1 ms" if seconds < 1e-4 else f"{1000 * seconds:.3f} ms"


def _about(personal: Personal) -> dict[str, Any]:
    config, dataset = personal.experiment.config, personal.experiment.dataset
    return {
        "agent": personal.agent,
        "round": personal.round,
        "algorithm": config.algorithm.name,
        "dataset": dataset.name,
        "classes": list(dataset.classes),
        "task": dataset.task,
        "normalisation": None if dataset.normalisation is None else dataset.normalisation.model_dump(),
        "target_scale": None if dataset.target_scale is None else dataset.target_scale.model_dump(),
        "labels": list(personal.about.labels),
        "readout": personal.result.readout,
        "config_hash": config.hash,
    }
