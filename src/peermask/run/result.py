"""The result of a run with its config and personal models."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn

from peermask.config.experiment import ExperimentConfig
from peermask.config.file import read_config
from peermask.data.dataset import Dataset
from peermask.data.measures import confusion_of
from peermask.errors import RunError
from peermask.files import read_json
from peermask.run.assemble import personal_models
from peermask.run.build import Experiment, build
from peermask.run.execution import as_html
from peermask.run.manifest import checkpoint_hashes, find_recorded_plugins
from peermask.store.checkpoint import Checkpoint, last_good
from peermask.store.result import StoredRun


@dataclass(frozen=True)
class RunResult(StoredRun):
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

    compared: tuple[RunResult, ...] = ()
    dataset: Dataset | None = field(default=None, repr=False)  # given in Python, in place of the config's
    module: nn.Module | None = field(default=None, repr=False)  # likewise

    @cached_property
    def config(self) -> ExperimentConfig:
        """The config; what only a plug-in knows is not checked."""
        return read_config(self.settings, unchecked=True)

    def _repr_html_(self) -> str:
        """Show the result in a notebook."""
        return as_html(self)

    def config_with_plugins(self) -> ExperimentConfig:
        """The config, with all that it names known here: plug-ins are imported, if the user named them."""
        find_recorded_plugins(self.folder.path)
        return read_config(self.folder.config)

    def last_checkpoint(self, frozen_checksum: str) -> Checkpoint:
        """The last checkpoint that is whole."""
        # By the hash the run wrote down: a later version's config may have further keys, and another hash.
        hashes = checkpoint_hashes(self.manifest["config_hash"], self.manifest)
        checkpoint = last_good(self.folder.checkpoints, hashes, frozen_checksum)
        if checkpoint is None:
            why = read_json(self.folder.diverged)["message"] if self.status == "diverged" else "let it run longer"
            raise RunError(f"{self.folder.path} has no checkpoint, so no models; {why}")
        return checkpoint

    def _built(self, dataset: Dataset | None, module: nn.Module | None) -> Experiment:
        """The experiment again, with the dataset and module that were given in Python."""
        given = self.module if module is None else module
        experiment = build(self.config_with_plugins(), self.dataset if dataset is None else dataset, given)
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
        """Count how often every agent's model took a label for another, on the agent's test samples.

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
