"""The result of a run, read from its folder: figures, tables and personal models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from peermask.config.experiment import ExperimentConfig
from peermask.config.file import read_config
from peermask.data.dataset import Dataset, Task
from peermask.data.measures import confusion_of
from peermask.errors import RunError, nearest
from peermask.models.outputs import Readout
from peermask.run.assemble import personal_models
from peermask.run.build import Experiment, build
from peermask.run.execution import as_html, to_stderr
from peermask.run.resume import checkpoint_hashes, find_recorded_plugins
from peermask.store.agent_result import NUMBERS, AgentResult, agent_results, mean_of
from peermask.store.arrays import Table, read_table
from peermask.store.checked import check_config, read_manifest, read_result
from peermask.store.checkpoint import Checkpoint, check_tables_since, last_good
from peermask.store.folder import RunFolder
from peermask.store.table import read_rows


@dataclass(frozen=True)
class RunResult:
    """A run, read from its folder; returned by `run_experiment`.

    Attributes:
        root: The run folder, or the folder of the comparison.
        config: What was run.
        manifest: Versions, device, checksums and each agent's labels and retention, as in manifest.json.
        agents: For each agent its labels, retention, density, accuracy and bytes sent.
        status: "finished", "converged", "interrupted", "diverged" or "unfinished".
        round: The last round.
        hash: Equal for two runs that ended in the same state; None before the end.
        seconds: Time spent on rounds.
        compared: Results of the other algorithms of a comparison.
        waiting: Algorithms of a comparison that have not begun.

    Examples:
        >>> import peermask
        >>> config = peermask.make_config({"agents": 4, "rounds": 2, "retention": 0.3, "model": "mlp"})
        >>> result = peermask.run_experiment(config, "run")
        >>> result.round, result.agents[0].retention, 0 <= result.mean_accuracy <= 1, result.sent_bytes > 0
        (2, 0.3, True, True)
        >>> peermask.RunResult.open("run").hash == result.hash
        True
    """

    root: Path
    config: ExperimentConfig
    manifest: dict[str, Any]
    agents: tuple[AgentResult, ...]
    status: str
    round: int
    hash: str | None
    seconds: float
    compared: tuple[RunResult, ...] = ()
    waiting: tuple[str, ...] = ()
    dataset: Dataset | None = field(default=None, repr=False)  # given in Python, in place of the config's
    module: nn.Module | None = field(default=None, repr=False)  # likewise

    @classmethod
    def open(cls, path: Path | str) -> RunResult:
        """Read a run or a comparison, finished or not.

        Args:
            path: A run folder.

        Returns:
            Its result so far.

        Raises:
            RunError: The folder is not a run, or a file in it is damaged.
        """
        root = Path(path)
        if (root / "compare.toml").is_file():
            arms = read_config(root / "compare.toml", unchecked=True).arms()
            begun = [name for name in arms if RunFolder(root / name).is_run]
            if not begun:
                raise RunError(f"{root} is a comparison with no run in it yet")
            first, *others = [_open_one(root / name) for name in begun]
            waiting = tuple(name for name in arms if name not in begun)
            return replace(first, root=root, compared=tuple(others), waiting=waiting)
        return _open_one(root)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return as_html(self)

    @property
    def folder(self) -> RunFolder:
        """Where this run's own tables are: inside `root` if it was part of a comparison."""
        inner = RunFolder(self.root / self.config.algorithm.name)
        return inner if inner.is_run else RunFolder(self.root)

    @property
    def readout(self) -> Readout:
        """The readout that counts."""
        return cast(Readout, self.manifest["readout"])  # checked when it was read

    @property
    def task(self) -> Task:
        """What the data was for: "classification", "multi-label" or "regression"."""
        return cast(Task, self.manifest["task"])

    @property
    def main_figure(self) -> str:
        """The figure that counts: "accuracy", "f1" or "r2"; larger is better."""
        return self.figures[0]

    @property
    def figures(self) -> tuple[str, ...]:
        """All that was measured on test samples, by name; the one that counts first."""
        return tuple(self.manifest["figures"])

    @property
    def mean_accuracy(self) -> float:
        """Mean over honest agents of the reported test accuracy; NaN for tasks that have none.

        Reported is the mean of the evaluations in the last quarter of the rounds.
        """
        return self.mean("test_accuracy")

    def mean(self, figure: str) -> float:
        """The mean over honest agents.

        Args:
            figure: A field of `AgentResult`, or a figure of the task, such as "mae".

        Returns:
            The mean; NaN if no agent has it.

        Raises:
            RunError: There is no such figure.
        """
        known = (*NUMBERS, *self.figures)
        if figure not in known:
            raise RunError(f"{self.root} has no figure {figure!r}; {nearest(str(figure), known)}")
        return mean_of(agent.value(figure) for agent in self.agents if not agent.liar)

    @property
    def worst(self) -> AgentResult:
        """The honest agent with the lowest test accuracy, or other figure that counts."""
        main = self.main_figure
        return min((agent for agent in self.agents if not agent.liar), key=lambda agent: agent.value(main))

    @property
    def sent_bytes(self) -> float:
        """Bytes that all agents sent, over all rounds and links."""
        return sum(agent.sent_bytes for agent in self.agents)

    def metrics(self) -> list[dict[str, float]]:
        """The rows of metrics.csv, one for each agent and evaluation.

        Returns:
            A list that `pandas.DataFrame` accepts.

        Examples:
            >>> import peermask
            >>> config = peermask.make_config({"agents": 4, "rounds": 2, "retention": 0.3, "model": "mlp"})
            >>> rows = peermask.run_experiment(config, "run").metrics()
            >>> len(rows), rows[0]["round"]
            (4, 2.0)
        """
        return [{key: float(value) for key, value in row.items()} for row in read_rows(self.folder.metrics)]

    def evaluations(self) -> Table:
        """The columns of metrics.csv as arrays [evaluation, agent]."""
        return read_table(self.folder.metrics, agents=len(self.agents))

    def known_config(self, warn: Callable[[str], None] = to_stderr) -> ExperimentConfig:
        """The config, with all that it names known here: plug-ins are imported, if the user named them."""
        find_recorded_plugins(self.folder.path, warn)
        return read_config(self.folder.config)

    def last_checkpoint(self, frozen_checksum: str, warn: Callable[[str], None] = to_stderr) -> Checkpoint:
        """The last that is whole."""
        # By the hash the run wrote down: a later version's config may have further keys, and another hash.
        hashes = checkpoint_hashes(self.manifest["config_hash"], self.manifest)
        checkpoint = last_good(self.folder.checkpoints, hashes, frozen_checksum, warn)
        if checkpoint is None:
            raise RunError(f"{self.folder.path} has no checkpoint, so no models; let it run longer")
        return checkpoint

    def _built(self, dataset: Dataset | None, module: nn.Module | None) -> Experiment:
        """The experiment again, with the dataset and module that were given in Python."""
        given = self.module if module is None else module
        experiment = build(self.known_config(), self.dataset if dataset is None else dataset, given)
        if given is None and self.manifest["frozen_checksum"] != experiment.frozen.checksum:
            raise RunError(
                f"{self.folder.path} was run with another network than its config names; "
                "give it again: local_models(module=..., dataset=...)"
            )
        return experiment

    def local_models(self, dataset: Dataset | None = None, module: nn.Module | None = None) -> list[nn.Module]:
        """Every agent's personal network, from the last checkpoint.

        Args:
            dataset: The dataset that was given to `run_experiment`, if one was and this result was read from disk.
            module: The module that was given to `run_experiment`, likewise.

        Returns:
            One ordinary `torch.nn.Module` per agent, which answers by the run's readout. It takes raw inputs [B, ...],
            as the dataset holds them, and normalises them itself; of a regression it gives values in the targets'
            units.

        Raises:
            RunError: There is no checkpoint, or the network is not the one that was run.

        Examples:
            >>> import peermask, torch
            >>> config = peermask.make_config({"agents": 4, "rounds": 2, "retention": 0.3, "model": "mlp"})
            >>> models = peermask.run_experiment(config, "run").local_models()
            >>> models[0](torch.zeros(5, 1, 8, 8)).shape
            torch.Size([5, 10])
        """
        return self._models(self._built(dataset, module))

    def _models(self, experiment: Experiment) -> list[nn.Module]:
        checkpoint = self.last_checkpoint(experiment.frozen.checksum)
        return personal_models(experiment, checkpoint.states, self.readout, [agent.labels for agent in self.agents])

    def confusion(self, dataset: Dataset | None = None, module: nn.Module | None = None) -> list[Tensor]:
        """How often every agent's model took a label for another, on the agent's test samples.

        Args:
            dataset: The dataset that was given to `run_experiment`, if one was and this result was read from disk.
            module: The module that was given to `run_experiment`, likewise.

        Returns:
            For each agent [classes, classes]: rows are labels, columns answers.

        Raises:
            RunError: There is no checkpoint, or the task has no labels.

        Examples:
            >>> import peermask
            >>> config = peermask.make_config({"agents": 4, "rounds": 2, "retention": 0.3, "model": "mlp"})
            >>> result = peermask.run_experiment(config, "run")
            >>> [tuple(counts.shape) for counts in result.confusion()]
            [(10, 10), (10, 10), (10, 10), (10, 10)]
        """
        if self.task != "classification":
            raise RunError(f"{self.folder.path} is a run of {self.task}, which has no labels, so no confusion matrix")
        experiment = self._built(dataset, module)
        test, classes = experiment.dataset.test, len(experiment.dataset.classes)
        counts = []
        for model, own in zip(self._models(experiment), experiment.samples, strict=True):
            with torch.no_grad():
                counts.append(confusion_of(model(test.inputs[own.test]), test.targets[own.test], classes))
        return counts


def _open_one(path: Path) -> RunResult:
    folder = RunFolder(path)
    if not folder.is_run:
        raise RunError(f"{path} is not a run folder: it has no config.toml")
    manifest = read_manifest(folder.manifest)
    check_config(folder, manifest)
    config = read_config(folder.config, unchecked=True)
    done = read_result(folder.result)
    if not done:
        check_tables_since(folder.checkpoints)
    table = read_table(folder.metrics, agents=len(manifest["agents"]))
    return RunResult(
        root=path,
        config=config,
        manifest=manifest,
        agents=tuple(agent_results(manifest, table)),
        status=done.get("status", "diverged" if folder.diverged.is_file() else "unfinished"),
        round=done.get("round", int(table.rounds.max(initial=0))),
        hash=done.get("hash"),
        seconds=done.get("seconds", nan),
    )
