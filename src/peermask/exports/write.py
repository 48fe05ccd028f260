"""An agent's model to a file, in the form its suffix asks for: .ticket, .onnx or .safetensors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any, cast, get_args

import safetensors.torch
import torch
from torch import nn

from peermask.data.dataset import Dataset
from peermask.errors import ExportError, RunError, nearest
from peermask.exports import Precision
from peermask.exports.personal import Personal, open_all, open_personal
from peermask.exports.reader import KEY, digest_safetensors, seal_onnx
from peermask.exports.ticket import About, Architecture, Frozen, Header, Inputs, Ticket
from peermask.files import as_path, write_atomically, writing
from peermask.masks.masker import Masker
from peermask.run.build import model_options
from peermask.run.result import RunResult
from peermask.task import format_bytes

# From an agent's model to its ticket; only models that are a mask over the frozen weights have one.


def make_ticket(personal: Personal) -> Ticket:
    experiment, layout = personal.experiment, personal.layout
    keep = experiment.agents.keep[personal.agent]  # [L]
    mask = personal.params[: layout.weights] != 0  # [P_w]
    masker = Masker(layout, experiment.frozen.values, experiment.config.mask)
    # Rebuilding is the test: what a ticket would give must be what the agent has, to the bit.
    if not torch.equal(masker.model(mask[None], keep[None])[0], personal.params):
        raise ExportError(
            f"agent {personal.agent} of {personal.result.root} has weights trained by "
            f"{experiment.config.algorithm.name}, not a mask over frozen ones, so a ticket cannot hold them; "
            "export to .safetensors or .onnx"
        )
    return Ticket.of(_header(personal, keep.tolist()), mask.numpy(), layout.sizes)


def _header(personal: Personal, keep: list[int]) -> Header:
    experiment, about = personal.experiment, personal.about
    config, dataset = experiment.config, experiment.dataset
    return Header(
        architecture=architecture_of(personal),
        classes=tuple(name[:200] for name in dataset.classes),
        frozen=Frozen(
            init=config.frozen.init,
            bias_init=config.frozen.bias_init,
            seed=config.seed,
            checksum=experiment.frozen.checksum,
            source=config.frozen.source,
            drawn=config.frozen.drawn or (),
        ),
        inputs=inputs_of(dataset),
        rescale=config.mask.rescale,
        keep=tuple(keep),
        readout=personal.result.readout,
        about=About(
            agent=personal.agent,
            round=personal.round,
            config_hash=personal.result.manifest["config_hash"],
            algorithm=config.algorithm.name,
            dataset=dataset.name,
            labels=about.labels,
            retention=about.retention,
            density=float((personal.params[: personal.layout.weights] != 0).float().mean()),
            test_accuracy=None if isnan(about.test_accuracy_last) else about.test_accuracy_last,
        ),
    )


def architecture_of(personal: Personal) -> Architecture:
    config, dataset = personal.experiment.config, personal.experiment.dataset
    model = {} if personal.own_module else model_options(config, dataset)
    return Architecture(
        name=None if personal.own_module else config.model.name,
        options={key: value for key, value in model.items() if value is not None},
        shape=dataset.shape,
        layers=config.mask.layers,
    )


def inputs_of(dataset: Dataset) -> Inputs:
    return Inputs(
        dtype=str(dataset.train.inputs.dtype).removeprefix("torch."),
        normalisation=dataset.normalisation,
        target_scale=dataset.target_scale,
        task=dataset.task,
        vocabulary=dataset.vocabulary,
    )


SUFFIXES = (".onnx", ".safetensors", ".ticket")


@dataclass(frozen=True)
class Exported:
    agent: int
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
    precision: str = "float32",
) -> Exported:
    """Write one agent's personal model to a file, atomically.

    Args:
        run: A result, or its run folder.
        agent: Which agent.
        to: The file. Its suffix chooses the format: `.ticket` (seed and mask), `.onnx` or `.safetensors`.
        dataset: The dataset that was given to `run_experiment`, if one was and the run is read from disk.
        module: The module that was given to `run_experiment`, likewise.
        force: Whether to replace a file that exists.
        precision: How an ONNX file stores weights: as "float32", or as "int8", "int4" or "int2", which hold the
            signs of signed constants exactly.

    Returns:
        The agent, the path, the size in bytes, and lines worth printing.

    Raises:
        ExportError: The agent does not exist, its model has no such format, or the file cannot be written.

    Examples:
        >>> import peermask
        >>> config = peermask.make_config({"agents": 4, "rounds": 2, "retention": 0.3, "model": "mlp"})
        >>> result = peermask.run_experiment(config, "run")
        >>> peermask.export(result, agent=3, to="agent3.ticket").path.name
        'agent3.ticket'
    """
    path = as_path(to, "to")
    _check_target(path, force=force)
    kind = _checked_precision(precision, path)
    result = run if isinstance(run, RunResult) else RunResult.open(run)
    given = result.dataset if dataset is None else dataset
    own = result.module if module is None else module
    personal = open_personal(result, agent, given, own)
    return _written(personal, path, kind)


def export_all(run: Path | str, to: Path | str, *, force: bool = False, precision: str = "float32") -> list[Exported]:
    """Write the personal models of all agents of a run; `{agent}` in `to` stands for their numbers."""
    if "{agent}" not in Path(to).name:
        raise ExportError(f"--to {to} is one file for all agents; use {{agent}} for the number: agent-{{agent}}.onnx")
    kind = _checked_precision(precision, Path(to))
    result = RunResult.open(run)
    paths = [Path(str(to).replace("{agent}", str(agent.agent))) for agent in result.agents]
    for path in paths:
        _check_target(path, force=force)
    return [_written(personal, path, kind) for personal, path in zip(open_all(result), paths, strict=True)]


def _checked_precision(precision: str, path: Path) -> Precision:
    for kind in get_args(Precision):
        if kind == precision and (kind == "float32" or path.suffix == ".onnx"):
            return cast(Precision, kind)
    if precision in get_args(Precision):
        raise ExportError(f"--precision {precision} is for .onnx files, not for {path.name}")
    raise ExportError(f"--precision {precision!r} is not one of {', '.join(get_args(Precision))}")


def _written(personal: Personal, path: Path, precision: Precision) -> Exported:
    makers: dict[str, Callable[[Personal], tuple[bytes, tuple[str, ...]]]] = {
        ".ticket": _ticket,
        ".onnx": partial(_onnx, precision=precision),
        ".safetensors": _safetensors,
    }
    data, lines = makers[path.suffix](personal)
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except RunError as error:
        reason = getattr(error.__cause__, "strerror", None) or error.__cause__
        raise ExportError(f"cannot write {path}: {reason}") from error
    return Exported(personal.agent, path, len(data), lines)


def _check_target(path: Path, *, force: bool) -> None:
    """Check where a file goes before the work, so that a mistake costs no time."""
    if path.suffix not in SUFFIXES:
        raise ExportError(
            f"cannot export to {path.name!r}: unknown suffix {path.suffix!r}; {nearest(path.suffix, SUFFIXES)}"
        )
    if path.is_dir():
        raise ExportError(f"cannot write {path}: it is a folder")
    if path.exists() and not force:
        raise ExportError(f"{path} exists; give another name, or replace it with --force (in Python force=True)")
    folder = next(above for above in path.absolute().parents if above.exists())  # in which others are made
    if not folder.is_dir():
        raise ExportError(f"cannot write {path}: {folder} is not a folder")
    if not os.access(folder, os.W_OK):
        raise ExportError(f"cannot write {path}: the folder {folder} is read-only")


def _ticket(personal: Personal) -> tuple[bytes, tuple[str, ...]]:
    data = make_ticket(personal).encode()
    floats = 4 * personal.layout.total
    times = f" ({floats / len(data):.0f} times as much)" if floats > 1.5 * len(data) else ""
    return data, (f"ticket of {format_bytes(len(data))}; the float32 model has {format_bytes(floats)}{times}",)


def _safetensors(personal: Personal) -> tuple[bytes, tuple[str, ...]]:
    tensors = {name: view.contiguous() for name, view in personal.layout.unflatten(personal.params).items()}
    said = _about(personal).items()
    about = {key: value if isinstance(value, str) else json.dumps(value) for key, value in said}
    plain = safetensors.torch.save(tensors, metadata=about)
    data = safetensors.torch.save(tensors, metadata={**about, KEY: digest_safetensors(plain)})
    kept = int((personal.params != 0).sum())
    return data, (f"{len(tensors)} tensors, {kept:,} of {personal.layout.total:,} values not zero",)


def _onnx(personal: Personal, precision: Precision) -> tuple[bytes, tuple[str, ...]]:
    from peermask.exports.onnx import make_onnx  # its packages are optional

    made = make_onnx(personal.module(), personal.experiment.dataset.test.inputs, _about(personal), precision)
    data = seal_onnx(made.data)
    lines = [f"onnxruntime and PyTorch agree within {made.difference:.1g}"]
    lines += [f"layer {name} stays float32: its weights have {count:,} magnitudes" for name, count in made.left.items()]
    if made.obstacle is not None:
        lines.append(f"no filters removed: {made.obstacle}")
    if made.slim is None:
        full = made.full
        lines.append(
            f"{format_bytes(full.size)}, {full.parameters:,} parameters, {full.multiply_adds:,} multiply-adds, "
            f"{_latency(full.latency)} an input"
        )
        return data, tuple(lines)
    removed = ", ".join(f"{count} of layer {name}" for name, count in made.removed.items())
    if made.obstacle is None:
        lines.append(f"dead filters removed: {removed or 'there were none'}")
    before, after = made.full, made.slim
    for what, one, other in (
        ("size", format_bytes(before.size), format_bytes(after.size)),
        ("parameters", f"{before.parameters:,}", f"{after.parameters:,}"),
        ("multiply-adds", f"{before.multiply_adds:,}", f"{after.multiply_adds:,}"),
        ("latency", _latency(before.latency), _latency(after.latency)),
    ):
        lines.append(f"{what:<14}{one:>14} -> {other}")
    return data, tuple(lines)


def _latency(seconds: float) -> str:
    """Format a latency; below a tenth of a millisecond a call costs more than the network."""
    return "under 0.1 ms" if seconds < 1e-4 else f"{1000 * seconds:.3f} ms"


def _about(personal: Personal) -> dict[str, Any]:
    config, dataset = personal.experiment.config, personal.experiment.dataset
    return {
        "agent": personal.agent,
        "round": personal.round,
        "algorithm": config.algorithm.name,
        "dataset": dataset.name,
        "classes": [name[:200] for name in dataset.classes],
        **inputs_of(dataset).model_dump(mode="json"),
        "labels": list(personal.about.labels),
        "readout": personal.result.readout,
        "config_hash": config.hash,
        "architecture": architecture_of(personal).model_dump(mode="json"),
    }
