"""The tables of a config that apply to every algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo

from peermask.config.choice import UNCHECKED
from peermask.data.measures import metrics
from peermask.graph.mixing import TENTHS
from peermask.models.frozen import BiasInit, inits
from peermask.models.outputs import losses
from peermask.registry import Options, Registry


class DataOptions(Options):
    """Use of each agent's samples."""

    fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="share of every agent's samples that is used"
    )
    validation: Annotated[float, Field(ge=0, lt=1)] = Field(0.1, description="share of training samples held out")
    flip: bool = Field(False, description="augmentation: mirror half of the images")
    crop: Annotated[int, Field(ge=0, le=16)] = Field(0, description="augmentation: shift by up to this many pixels")


def _name_in(registry: Registry[Any]) -> BeforeValidator:
    def check(name: object, info: ValidationInfo) -> str:
        return str(name) if info.context == UNCHECKED else registry[str(name)].name

    return BeforeValidator(check)


class FrozenOptions(Options):
    """The weights all agents share: random, or from a file or module."""

    model_config = ConfigDict(serialize_by_alias=True)

    init: Annotated[str, _name_in(inits)] = Field("signed-constant", description="distribution of the weights")
    bias_init: BiasInit = Field("zero", description="biases: zero, or drawn as torch does")
    source: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        alias="from",
        description="given weights: a .safetensors file or a state dict, or 'module': those of a module from Python",
    )
    drawn: tuple[str, ...] | None = Field(
        None, description="patterns of parameters that are drawn from the seed anyway, such as a new last layer"
    )


_Metric = Annotated[str, _name_in(metrics)]  # named here, since inside the class `metrics` is the field


class TaskOptions(Options):
    """Loss and metrics; by default those of the data's task."""

    loss: Annotated[str, _name_in(losses)] | None = Field(None, description="what is minimised")
    metrics: tuple[_Metric, ...] = Field((), description="further figures to measure")


class ExchangeOptions(Options):
    """How messages are sent."""

    values: Literal["float32", "float16"] = Field(
        "float32", description="real values in messages; masks are one bit a weight in any case"
    )


class EvaluationOptions(Options):
    """When models are tested."""

    every: Annotated[int, Field(ge=1)] = Field(10, description="rounds between evaluations; the last is always one")
    unmixed: bool = Field(False, description="also test models as they were sent, before mixing")


class StopOptions(Options):
    """The paper's "while not converged": stop when the mean validation accuracy no longer improves."""

    patience: Annotated[int, Field(ge=0)] = Field(
        0, description="evaluations without improvement before stopping; 0: never"
    )
    tolerance: Annotated[float, Field(ge=0)] = Field(
        0.001, description="the smallest difference that counts as improvement"
    )


class SpeedDraw(Options):
    """Speeds drawn for each agent from a list."""

    choices: tuple[Annotated[float, Field(gt=0, le=1000)], ...] = Field(min_length=1, description="numbers above 0")


def _speeds(value: object) -> object:
    """Report errors for the probable form: a list or a table."""
    if value is None or isinstance(value, SpeedDraw | Mapping):
        return value
    if not isinstance(value, list | tuple):
        raise ValueError("must be a list with one number per agent, or {choices = [...]}")
    for agent, speed in enumerate(value):
        if isinstance(speed, bool) or not isinstance(speed, int | float) or not 0 < speed <= 1000:
            raise ValueError(f"agent {agent} has {speed!r}; every speed must be above 0 and at most 1000")
    return tuple(map(float, value))


def _falling(weights: tuple[int, ...]) -> tuple[int, ...]:
    if weights[0] == 0 or list(weights) != sorted(weights, reverse=True):
        raise ValueError("must begin above 0 and not increase with age")
    return weights


Weights = Annotated[
    tuple[Annotated[int, Field(ge=0, le=100)], ...], Field(min_length=1, max_length=TENTHS), AfterValidator(_falling)
]


class AsynchronousOptions(Options):
    """Agents hardly wait: each uses the newest messages it has. All but `weights` and `grace` is for the simulator."""

    weights: Weights = Field(
        (32, 16, 8, 4, 2, 1),
        description="how often a message counts by its age, about the tenths of its receiver's rounds it is behind; "
        "whole numbers; older messages are not used",
    )
    grace: Annotated[float, Field(ge=0, le=1)] = Field(
        0.25,
        description="how long an agent waits for neighbours that were at most one round behind, as a share of its own "
        "round; 0: not at all",
    )
    speeds: Annotated[tuple[float, ...] | SpeedDraw | None, BeforeValidator(_speeds)] = Field(
        None, description="rounds an agent plays in a unit of time: one per agent, or a draw; default 1 each"
    )
    jitter: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.2, description="how much longer or shorter a round is, drawn up to this share of it"
    )
    latency: Annotated[float, Field(ge=0, le=1_000_000)] = Field(
        0.0, description="time until a message arrives, in rounds of an agent of speed 1"
    )
    trace: str | None = Field(None, description="a trace.csv of a fleet to replay, instead of speeds")


class DeathOptions(Options):
    """Some agents stop, and some of them return, to test what the others lose. Means include the dead agents."""

    after: Annotated[int, Field(ge=0)] = Field(description="the last round that they play; 0: none")
    agents: tuple[int, ...] | None = Field(None, min_length=1, description="which agents; either this or count")
    count: Annotated[int, Field(ge=1)] | None = Field(None, description="how many agents, drawn by the seed")
    returning: Annotated[int, Field(ge=0)] = Field(0, description="how many of them return, the first in the list")
    back: int | None = Field(None, description="the round in which those play again, with the state they had")


class CheckpointOptions(Options):
    """When a run is saved."""

    every: Annotated[int, Field(ge=1)] = Field(50, description="rounds between checkpoints; the last is always one")
    masks: bool = Field(True, description="keep every agent's mask at checkpoints, for reports")
