"""The config of an experiment: typed, frozen, and strict about unknown keys."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

import tomli_w
from pydantic import Field, model_validator

from peermask.algorithms import algorithms
from peermask.algorithms.liars import LiarOptions
from peermask.config.choice import (
    AlgorithmChoice,
    ComparedChoice,
    DatasetChoice,
    GraphChoice,
    ModelChoice,
    PartitionChoice,
    ScheduleChoice,
)
from peermask.config.sections import (
    AsynchronousOptions,
    CheckpointOptions,
    DataOptions,
    DeathOptions,
    EvaluationOptions,
    ExchangeOptions,
    FrozenOptions,
    StopOptions,
    TaskOptions,
)
from peermask.data.dataset import Task
from peermask.errors import ConfigError
from peermask.masks.masker import MaskOptions, Retention, RetentionDraw
from peermask.models.outputs import Readout
from peermask.registry import Options
from peermask.task import arm_names


class ExperimentConfig(Options):
    """One experiment, complete and checked; make it with `load_config` or `make_config`.

    The keys are those of a config file. `peermask plan FILE` prints all of them with their values, and `peermask list`
    what a table such as `[graph]` or `[algorithm]` may name. A config cannot be changed once it is made.

    Examples:
        >>> import peermask
        >>> config = peermask.make_config({"agents": 4, "graph": {"name": "ring"}})
        >>> config.agents, config.graph.name, config.seed
        (4, 'ring', 0)
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=80)] = Field(
        "default", description="name of its folder"
    )
    imports: tuple[str, ...] | None = Field(
        None, description="plug-ins: files (.py) and modules that register names used in this config"
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(0, description="seed of all random numbers")
    agents: Annotated[int, Field(ge=1, le=65_535)] = Field(10, description="number of agents")
    rounds: Annotated[int, Field(ge=1, le=10_000_000)] = Field(200, description="exchanges with neighbours")
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = Field(32, description="samples in a batch")
    local_batches: Annotated[int, Field(ge=1, le=10_000)] | None = Field(
        None, description="batches an agent learns from between two exchanges; default 1"
    )
    retention: Retention = Field(
        RetentionDraw(choices=(0.1, 0.2, 0.3, 0.4)),
        description="share of weights that an agent keeps: a number in (0, 1], a list with one per agent, or a draw",
    )
    readout: Readout | None = Field(
        None, description="choose answers among all labels, or an agent's own; default: what the algorithm declares"
    )
    graph: GraphChoice = Field(
        {}, validate_default=True, description="which agents are neighbours; default erdos-renyi"
    )
    schedule: ScheduleChoice | None = Field(None, description="how the graph changes; default: it is fixed")
    dataset: DatasetChoice = Field({}, validate_default=True, description="default digits")
    partition: PartitionChoice = Field(
        {}, validate_default=True, description="which samples each agent holds; default labels"
    )
    data: DataOptions = DataOptions()
    model: ModelChoice = Field({}, validate_default=True, description="default cnn")
    frozen: FrozenOptions = FrozenOptions()
    mask: MaskOptions = MaskOptions()
    algorithm: AlgorithmChoice = Field({}, validate_default=True, description="default mce-pl")
    compare: tuple[ComparedChoice, ...] = Field((), description="further algorithms on the same data, graph and seeds")
    exchange: ExchangeOptions | None = Field(None, description="how messages are sent; default: values as float32")
    evaluation: EvaluationOptions = EvaluationOptions()
    stop: StopOptions = StopOptions()
    checkpoint: CheckpointOptions = CheckpointOptions()
    task: TaskOptions | None = Field(None, description="loss and metrics; default: those of the data's task")
    liars: LiarOptions | None = Field(None, description="agents that send false messages, to test a method")
    deaths: DeathOptions | None = Field(None, description="agents that stop, to test a method; default: none")
    asynchronous: AsynchronousOptions | None = Field(
        None, description="agents do not wait for each other; default: synchronous rounds"
    )

    @model_validator(mode="after")
    def _algorithms_fit(self) -> ExperimentConfig:
        """Refuse algorithms that cannot do what other keys ask. In a run that is only read, some may be unknown."""
        crafted = self.liars is not None and self.liars.kind == "crafted"
        half = self.exchange is not None and self.exchange.values == "float16"
        for place, choice in enumerate((self.algorithm, *self.compare)):
            if choice.name not in algorithms:
                continue
            kind = algorithms[choice.name].make
            if crafted and not kind.over_frozen_weights:
                raise ConfigError(
                    f"liars.kind = 'crafted': only masks can be crafted, and {choice.name} sends real values; "
                    "random and inverted lies work with every algorithm"
                )
            if half and kind.over_frozen_weights:
                raise ConfigError(
                    f"exchange.values = 'float16': {choice.name} sends masks, one bit a weight, and no real values; "
                    "leave it out"
                )
            for key in ("schedule", "asynchronous", "deaths") if kind.needs_every_message else ():
                if getattr(self, key) is not None:
                    raise ConfigError(
                        f"{key} and {'compare' if place else 'algorithm'} = {choice.name!r}: it needs every "
                        f"message of every neighbour in each round; delete {key}, or choose another algorithm"
                    )
        return self

    @property
    def traced_by(self) -> str | None:
        """The key for which agents are computed one by one, by a trace; None where all play the same rounds."""
        return next((key for key in ("asynchronous", "deaths") if getattr(self, key) is not None), None)

    @model_validator(mode="after")
    def _can_be_traced(self) -> ExperimentConfig:
        if (traced := self.traced_by) is None:
            return self
        for choice in (self.algorithm, *self.compare):
            if choice.name in algorithms and algorithms[choice.name].make.hears_all:
                raise ConfigError(
                    f"{traced}: agents of {choice.name} wait for a server that hears all of them; delete it, or "
                    "choose an algorithm whose agents hear their neighbours"
                )
        refused = {"schedule": self.schedule, "liars": self.liars, "evaluation.unmixed": self.evaluation.unmixed}
        for key, value in refused.items():
            if value:
                raise ConfigError(
                    f"{traced}: {key} needs synchronous rounds that all agents play; delete one of the two"
                )
        speeds = None if self.asynchronous is None else self.asynchronous.speeds
        if isinstance(speeds, tuple) and len(speeds) != self.agents:
            raise ConfigError(
                f"asynchronous.speeds: {len(speeds)} numbers for {self.agents} agents; give one per agent"
            )
        return self

    @model_validator(mode="after")
    def _some_survive(self) -> ExperimentConfig:
        if (deaths := self.deaths) is None:
            return self
        if (deaths.agents is None) == (deaths.count is None):
            raise ConfigError("deaths: give either agents, a list of their numbers, or count")
        dead, last = deaths.count or len(deaths.agents or ()), self.agents - 1
        for agent in deaths.agents or ():
            if not 0 <= agent <= last or (deaths.agents or ()).count(agent) > 1:
                raise ConfigError(f"deaths.agents: {agent} must be from 0 to {last}, and once in the list")
        if dead > last:
            raise ConfigError(f"deaths: all {self.agents} agents would die; at most {last} can")
        if deaths.after >= self.rounds:
            raise ConfigError(f"deaths.after = {deaths.after}: must be below rounds = {self.rounds}")
        if deaths.returning > dead:
            raise ConfigError(f"deaths.returning = {deaths.returning}: only {dead} die")
        if bool(deaths.returning) != (deaths.back is not None):
            raise ConfigError("deaths: returning and back belong together: how many return, and in which round")
        if deaths.back is not None and not deaths.after + 1 < deaths.back <= self.rounds:
            raise ConfigError(
                f"deaths.back = {deaths.back}: must be above after + 1 = {deaths.after + 1}, and at most rounds = "
                f"{self.rounds}"
            )
        return self

    def table(self) -> dict[str, Any]:
        """This config as plain values, with every default written out.

        Returns:
            Nested dictionaries that `make_config` accepts.

        Examples:
            >>> import peermask
            >>> config = peermask.make_config({"agents": 4})
            >>> config.table()["graph"]
            {'name': 'erdos-renyi', 'p': 0.5}
        """
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)

    def toml(self) -> str:
        """This config as the text of a config file, with every default written out.

        Returns:
            TOML that `load_config` reads back.

        Examples:
            >>> import peermask
            >>> print(peermask.make_config({"agents": 4}).toml().splitlines()[2])
            agents = 4
        """
        return tomli_w.dumps(self.table())

    @property
    def hash(self) -> str:
        """Hash of the config: equal for the same run, wherever a machine has its plug-ins."""
        table = self.table()
        table.pop("imports", None)
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]

    def readout_for(self, task: Task) -> Readout:
        """The readout that counts: the config's, or else the algorithm's default.

        Without one label a sample there is nothing to choose among."""
        if task == "classification":
            return self.readout or algorithms[self.algorithm.name].make.readout
        if self.readout == "own":
            raise ConfigError(f"readout = 'own': {task} has no labels to answer among; leave it out")
        return "all"

    def arms(self) -> dict[str, ExperimentConfig]:
        """The algorithms of a comparison, each as its own config.

        Returns:
            One config for `algorithm` and one for each entry of `compare`, by name.

        Examples:
            >>> import peermask
            >>> list(peermask.make_config({"algorithm": "mce-pl", "compare": ["ind-mask"]}).arms())
            ['mce-pl', 'ind-mask']
        """
        choices = (self.algorithm, *self.compare)
        names = arm_names(choice.name for choice in choices)
        arms = (self.model_copy(update={"algorithm": choice, "compare": ()}) for choice in choices)
        return dict(zip(names, arms, strict=True))
