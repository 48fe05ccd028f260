"""Statistics of data on several devices: each device declares its own, and they are combined in the fleet file.

With n_i samples, mean μ_i and variance σ²_i (by feature or channel) of agent i, those of all data are exactly

    n = Σ n_i        μ = Σ n_i μ_i / n        σ² = Σ n_i (σ²_i + (μ_i − μ)²) / n
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import fsum
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
from pydantic import Field, ValidationError, model_validator
from torch import Tensor

from peermask.config.choice import choose, first_problem
from peermask.data import datasets
from peermask.data.dataset import Dataset
from peermask.data.normalisation import Mean, Statistics, statistics
from peermask.errors import NodeError, PeermaskError
from peermask.files import write_atomically
from peermask.fleet.fleet import Fleet
from peermask.registry import Options

LARGEST_BYTES = 2**24  # bytes of a summary
Variance = Annotated[float, Field(ge=0, le=1e60)]


class Moments(Options):
    """Of each feature or channel."""

    mean: tuple[Mean, ...] = Field(min_length=1)
    variance: tuple[Variance, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _as_many(self) -> Moments:
        if len(self.mean) != len(self.variance):
            raise ValueError(f"mean has {len(self.mean)} numbers and variance {len(self.variance)}")
        return self


class Summary(Options):
    """What a device declares about its training data; nothing else leaves it."""

    run: str
    agent: Annotated[int, Field(ge=0)]
    samples: Annotated[int, Field(ge=1, le=10**12)]
    inputs: Moments
    targets: Moments | None = None  # of a regression


def summary_of(fleet: Fleet, agent: int) -> Summary:
    """The summary of the data on this device."""
    fleet.member(agent)
    choice = _scaled_dataset(fleet)
    data: Dataset = datasets[choice.name].make(**dict(choice.options))
    if data.vocabulary is not None:
        raise NodeError("the data are tokens, which have no mean; no statistics are needed")
    inputs, targets = data.train.inputs, data.train.targets
    if fleet.experiment.partition.name == "given" and data.train.agents is not None:
        chosen = data.train.agents == agent
        if not bool(chosen.any()):
            raise NodeError(f"{data.name} has no training samples of agent {agent}; check agent_train")
        inputs, targets = inputs[chosen], targets[chosen]
    scale = moments(targets) if data.task == "regression" else None
    return Summary(run=fleet.run, agent=agent, samples=len(inputs), inputs=moments(inputs), targets=scale)


def moments(x: Tensor) -> Moments:
    """[n, C, ...], in float64."""
    flat = x.transpose(0, 1).flatten(1).double()  # [C, n * ...]
    mean = flat.mean(1)
    variance = (flat - mean[:, None]).square().mean(1)
    return Moments(mean=tuple(mean.tolist()), variance=tuple(variance.tolist()))


def write_summary(path: Path, summary: Summary) -> None:
    write_atomically(path, (summary.model_dump_json(indent=1, exclude_none=True) + "\n").encode())


def read_summary(path: Path, largest: int = LARGEST_BYTES) -> Summary:
    """A summary from another device: its size and every number are limited."""
    try:
        if path.stat().st_size > largest:
            raise NodeError(f"summary {path} has {path.stat().st_size} bytes, allowed: {largest}")
        return Summary.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise NodeError(
            f"summary {path} cannot be read: {error.strerror}; make it with `peermask fleet summary` on its device"
        ) from None
    except ValidationError as error:
        raise NodeError(f"summary {path}: {first_problem(error, Summary)}") from None
    except (ValueError, RecursionError) as error:
        raise NodeError(f"summary {path} is not JSON: {error}") from None


def with_statistics(fleet: Fleet, summaries: Sequence[Summary], *, partial: bool = False, far: float = 10.0) -> Fleet:
    """The fleet with an experiment that says how inputs, and the targets of a regression, are scaled."""
    ordered = sorted(summaries, key=lambda summary: summary.agent)
    _check(fleet, ordered, partial=partial)
    scales: dict[str, Any] = {"normalise": combined(ordered, [each.inputs for each in ordered], "input", far)}
    targets = [each.targets for each in ordered if each.targets is not None]
    if targets:
        if len(targets) < len(ordered):
            raise NodeError("some agents declare targets and some do not; all must have the same task")
        scales["target_scale"] = combined(ordered, targets, "target", far)
    table = {**_scaled_dataset(fleet).table(), **{name: value.model_dump() for name, value in scales.items()}}
    try:
        choice = choose(datasets, "dataset", table)
    except PeermaskError as error:
        raise NodeError(f"experiment.{error}") from None
    return fleet.model_copy(update={"experiment": fleet.experiment.model_copy(update={"dataset": choice})})


def combined(who: Sequence[Summary], each: Sequence[Moments], what: str, far: float) -> Statistics:
    """The statistics of all data, by sums that are rounded once and so do not depend on the order of agents."""
    sizes = {len(moment.mean) for moment in each}
    if len(sizes) > 1:
        odd = next(i for i, moment in enumerate(each) if len(moment.mean) != len(each[0].mean))
        both = f"{len(each[odd].mean)} {what} features, agent {who[0].agent} {len(each[0].mean)}"
        raise NodeError(f"agent {who[odd].agent} declares {both}; all must have the same")
    counts, total = [summary.samples for summary in who], sum(summary.samples for summary in who)
    means, deviations = [], []
    for place in range(sizes.pop()):
        moments = [(moment.mean[place], moment.variance[place]) for moment in each]
        _refuse_far(who, moments, f"{what} {place}", far)
        mean = fsum(n * value for n, (value, _) in zip(counts, moments, strict=True)) / total
        spread = fsum(n * (var + (value - mean) ** 2) for n, (value, var) in zip(counts, moments, strict=True)) / total
        means.append(mean)
        deviations.append(spread**0.5)
    return statistics(torch.tensor(means, dtype=torch.float64), torch.tensor(deviations, dtype=torch.float64))


def _refuse_far(who: Sequence[Summary], moments: Sequence[tuple[float, float]], what: str, far: float) -> None:
    """A false summary, or a sensor with another unit, would make the scale useless for all."""
    if len(moments) < 3:
        return  # the median would say nothing
    middle, usual = median(mean for mean, _ in moments), median(variance for _, variance in moments) ** 0.5
    spread = max(usual, median(abs(mean - middle) for mean, _ in moments))
    for summary, (mean, variance) in zip(who, moments, strict=True):
        if max(abs(mean - middle), variance**0.5) > far * spread > 0:
            raise NodeError(
                f"agent {summary.agent} declares mean {mean:g} and deviation {variance**0.5:g} of {what}; the medians "
                f"are {middle:g} and {usual:g}: look at its data, leave it out (--partial), or raise --far"
            )


def _check(fleet: Fleet, ordered: Sequence[Summary], *, partial: bool) -> None:
    agents = [summary.agent for summary in ordered]
    for summary in ordered:
        fleet.member(summary.agent)
        if summary.run != fleet.run:
            raise NodeError(
                f"the summary of agent {summary.agent} is of run {summary.run:.40}, the fleet's is {fleet.run}"
            )
        if agents.count(summary.agent) > 1:
            raise NodeError(f"agent {summary.agent} has two summaries; give one")
    missing = sorted({member.agent for member in fleet.agents} - set(agents))
    if missing and not partial:
        raise NodeError(f"no summary of agents {missing}; give one of each, or use --partial to leave them out")


def _scaled_dataset(fleet: Fleet) -> Any:
    """The dataset of the experiment, if its scale can be set."""
    choice = fleet.experiment.dataset
    if "normalise" not in type(choice.options).model_fields:
        raise NodeError(f"experiment.dataset.name = {choice.name!r} has a fixed scale; no statistics are needed")
    return choice
