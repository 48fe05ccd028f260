"""The tables of a config that say how a run is set up, whatever the algorithm."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo

from peermask.engine.measures import metrics
from peermask.experiment.choice import UNCHECKED
from peermask.models.frozen import BiasInit, inits
from peermask.models.losses import losses
from peermask.registry import Options, Registry


class DataOptions(Options):
    """What each agent does with the samples it was given."""

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
    """The weights all agents share: random, or given."""

    model_config = ConfigDict(serialize_by_alias=True)

    init: Annotated[str, _name_in(inits)] = Field("signed-constant", description="distribution of the weights")
    bias_init: BiasInit = Field("zero", description="biases: zero, or drawn as torch does")
    source: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        alias="from",
        description="given weights: a .safetensors file or a state dict, or 'module': those of a module from Python",
    )
    drawn: tuple[str, ...] | None = Field(
        None, description="patterns of the parameters that are drawn all the same, such as a new last layer"
    )


_Metric = Annotated[str, _name_in(metrics)]  # named here, since inside the class `metrics` is the field


class TaskOptions(Options):
    """What a network learns for and is measured by; by default as the data's task says."""

    loss: Annotated[str, _name_in(losses)] | None = Field(None, description="what is minimised")
    metrics: tuple[_Metric, ...] = Field((), description="figures to measure beside those of the task")


class EvaluationOptions(Options):
    """When models are tested."""

    every: Annotated[int, Field(ge=1)] = Field(10, description="rounds between evaluations; the last is always one")
    unmixed: bool = Field(False, description="test models also as they were sent, before neighbours were mixed in")


class StopOptions(Options):
    """The paper's "while not converged": stop when the mean validation accuracy no longer rises."""

    patience: Annotated[int, Field(ge=0)] = Field(0, description="evaluations without a rise before stopping; 0: never")
    tolerance: Annotated[float, Field(ge=0)] = Field(0.001, description="the least that counts as a rise")


class CheckpointOptions(Options):
    """When a run is saved."""

    every: Annotated[int, Field(ge=1)] = Field(50, description="rounds between checkpoints; the last is always one")
    masks: bool = Field(True, description="keep every agent's mask at checkpoints, for reports")
