"""What a personal model costs on this machine, by retention: latency, memory, file, multiply-adds.

Two ways to keep a share r of a layer's weights are measured, both with masks drawn at random, since costs do not depend
on what was learned:

    unstructured   any r n weights of a layer's n; zeros are stored and multiplied like other weights
    filters        r O of its O filters, whole; the others are cut out of the network, as `export` does

A runtime for dense networks gains nothing from scattered zeros. What it does gain from is filters that are gone, for
time and memory, and signs in place of float32, for the file.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, ValidationError
from torch import Tensor, nn

from peermask.compute.network import blank
from peermask.config.choice import choose
from peermask.errors import ExportError
from peermask.exports import Precision
from peermask.exports.rebuild import named_module
from peermask.exports.slim import NotSlimmable, count_multiply_adds, slim
from peermask.exports.ticket import Architecture, Side
from peermask.files import read_json, write_json
from peermask.masks.masker import MaskOptions, kept_counts
from peermask.models.architectures import models
from peermask.models.frozen import frozen_weights
from peermask.models.layout import Layout, find_layout
from peermask.registry import Options
from peermask.run.assemble import with_params
from peermask.streams import stream

RETENTIONS = (0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
REPEATS = 50
TIMEOUT = 300.0  # seconds for one model

Kind = Literal["unstructured", "filters"]
Positive = Annotated[float, Field(gt=0)]


class Cost(Options):
    """The cost of one model: measured, but for the multiply-adds, which are counted."""

    retention: Annotated[float, Field(gt=0, le=1)]
    kind: Kind
    precision: Precision
    latency: Positive  # seconds for one input, one thread, the median
    memory: Annotated[int, Field(ge=0)]  # bytes by which onnxruntime grows when it loads and runs it
    bytes: Annotated[int, Field(ge=0)]  # of the file: what is read from storage
    multiply_adds: Annotated[int, Field(ge=0)]  # for one input, with those by zero


class Limits(Options):
    latency: Positive | None = None
    memory: Positive | None = None

    def met_by(self, cost: Cost) -> bool:
        return (self.latency is None or cost.latency <= self.latency) and (
            self.memory is None or cost.memory <= self.memory
        )


class Profile(Options):
    """A model on a machine, as a small JSON file; `fleet new` and `node` read the retentions that meet its limits."""

    model: dict[str, Any]  # name and options, as a config has them
    shape: tuple[Side, ...] = Field(min_length=1, max_length=5)
    classes: Annotated[int, Field(ge=1)]
    machine: str
    precision: Precision = "float32"  # which rows the limits are held against
    limits: Limits = Limits()
    costs: tuple[Cost, ...] = Field(min_length=1, max_length=1000)
    obstacle: Annotated[str, Field(max_length=1000)] | None = None  # why nothing is measured by filters

    def retention(self, kind: Kind) -> float | None:
        """The largest that meets the limits."""
        rows = (cost for cost in self.costs if (cost.kind, cost.precision) == (kind, self.precision))
        return max((cost.retention for cost in rows if self.limits.met_by(cost)), default=None)


def profile(
    model: str | Mapping[str, Any],
    shape: tuple[int, ...] = (3, 32, 32),
    classes: int = 10,
    limits: Limits | None = None,
    retentions: Sequence[float] = RETENTIONS,
    precision: Precision = "float32",
    tell: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Measure a model by retention in onnxruntime, each in its own process."""
    chosen = choose(models, "model", model).table()
    options = {key: value for key, value in chosen.items() if key != "name"}
    named = Architecture(name=chosen["name"], options=options, shape=shape, layers=("*",))
    tokens = "vocabulary" in models[chosen["name"]].options.model_fields  # as for a config's data
    layout = find_layout(named_module(named, classes, "profile", tokens=tokens), named.layers)
    examples = blank(shape, tokens=tokens)
    costs: list[Cost] = []
    obstacle = None
    with tempfile.TemporaryDirectory() as folder:
        for retention in sorted(retentions):
            for kind in ("unstructured", "filters"):
                tell(f"retention {retention:g}, {kind}")
                module = named_module(named, classes, "profile", tokens=tokens).to_empty(device="cpu")
                masked = with_params(module, layout, masked_params(layout, retention, kind))
                try:
                    used = slim(masked, shape).module if kind == "filters" else masked
                except NotSlimmable as error:
                    obstacle = str(error)
                    continue
                costs += _costs(used, examples, retention, kind, Path(folder) / "model.onnx")
    return Profile(
        model=chosen,
        shape=shape,
        classes=classes,
        machine=f"{platform.processor() or platform.machine()}, {platform.system()}",
        precision=precision,
        limits=limits or Limits(),
        costs=tuple(costs),
        obstacle=obstacle,
    )


def masked_params(layout: Layout, retention: float, kind: Kind) -> Tensor:
    """[P]: signed constants under a random mask of the counts that an agent of this retention keeps."""
    params = frozen_weights(layout, "signed-constant", "zero", 0).values.clone()
    (keep,) = kept_counts(layout, [retention], MaskOptions()).tolist()
    for place, (layer, count) in enumerate(zip(layout.masked, keep, strict=True)):
        draw = torch.from_numpy(stream(0, "profile", place).uniform(layer.size)).float()
        if kind == "filters" and place < len(layout.masked) - 1:  # the last layer's filters are the classes
            alive = max(1, round(layer.filters * count / layer.size))
            draw = draw.view(layer.filters, -1)[:, :1].expand(layer.filters, layer.size // layer.filters).flatten()
            count = alive * (layer.size // layer.filters)
        gone = torch.argsort(draw, stable=True)[count:]  # [n - K]
        params[layer.span][gone] = 0.0
    return params


def _costs(module: nn.Module, examples: Tensor, retention: float, kind: Kind, path: Path) -> list[Cost]:
    from peermask.exports.onnx import to_onnx, with_signs

    data, work = to_onnx(module, examples, {}), count_multiply_adds(module, examples)
    costs = []
    for precision in ("float32", "int8"):
        path.write_bytes(with_signs(data, precision).data)
        found = run_trial(path)
        costs.append(
            Cost(
                retention=retention,
                kind=kind,
                precision=precision,
                latency=found["latency"],
                memory=found["memory"],
                bytes=path.stat().st_size,
                multiply_adds=work,
            )
        )
    return costs


def run_trial(path: Path, repeats: int = REPEATS, *, fold: bool = False) -> dict[str, Any]:
    """Latency and memory of a model, in its own process."""
    from peermask.exports.onnx import empty_model  # its packages are optional

    empty = path.with_name("empty.onnx")
    empty.write_bytes(empty_model())
    command = [sys.executable, "-m", "peermask.exports.trial", str(empty), str(path), str(repeats), *["fold"] * fold]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT)
        found: dict[str, Any] = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        raise ExportError(f"onnxruntime failed: {(error.stderr.strip().splitlines() or ['?'])[-1]}") from None
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise ExportError(f"onnxruntime gave no measurement: {error}") from None
    return found


def save_profile(path: Path, made: Profile) -> None:
    write_json(path, made.model_dump(mode="json", exclude_none=True))


def read_profile(path: Path) -> Profile:
    remedy = "make it again with `peermask profile`"
    try:
        return Profile.model_validate(read_json(path, remedy))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ExportError(f"{path} is not a profile ({where}: {first['msg']}); {remedy}") from None


def retention_for(path: Path, model: Mapping[str, Any], kind: Kind) -> float:
    """Find the largest retention that a device can carry, by the profile in a file."""
    made = read_profile(path)
    if made.model != dict(model):
        raise ExportError(f"{path} is of model {json.dumps(made.model)}, not of {json.dumps(dict(model))}")
    found = made.retention(kind)
    if found is None:
        by_filters = made.retention("filters")
        advice = "take a smaller model, or other limits"
        if kind == "unstructured" and by_filters is not None:
            advice = f"by filters {by_filters:g} does: set mask.filter_threshold"
        raise ExportError(f"{path}: no retention that was measured meets its limits {kind_words(kind)}; {advice}")
    return found


def kind_words(kind: Kind) -> str:
    return "by filters" if kind == "filters" else "unstructured"
