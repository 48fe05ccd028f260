"""The result of a run as its folder has it: every agent's, and means over agents. Without torch."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from math import nan
from pathlib import Path
from typing import Any, Self, cast

import numpy as np

from peermask.errors import RunError, nearest
from peermask.files import as_path
from peermask.store.checkpoint import check_tables_since
from peermask.store.folder import RunFolder, check_config, read_manifest, read_result
from peermask.store.table import Table, nanmean, read_rows, read_table
from peermask.task import Readout, Task, arm_names

BY_READOUT = ("test_accuracy_all", "test_accuracy_own", "test_accuracy_weighted")


@dataclass(frozen=True)
class AgentResult:
    """Result of one agent; accuracies and figures are reported ones: see `store/table.py`."""

    agent: int
    labels: tuple[int, ...]
    retention: float
    density: float
    test_accuracy: float  # by the readout that counts; unknown for tasks that have none
    test_accuracy_last: float  # of the last evaluation alone: that of the exported model
    sent_bytes: float
    links: int
    test_accuracy_all: float = nan  # with answers among all labels
    test_accuracy_own: float = nan  # likewise, among the agent's own
    liar: bool = False  # sent lies, as the config asked for; means are those of the honest
    test_accuracy_weighted: float = nan  # by the readout that counts, labels weighted as in the agent's training data
    figures: dict[str, float] = field(default_factory=dict)  # all of the task, on test samples, by name

    def value(self, figure: str) -> float:
        """Any figure by name: of this row, or of the task; NaN if it is not known."""
        return float(getattr(self, figure, self.figures.get(figure, nan)))


NUMBERS = tuple(each.name for each in fields(AgentResult) if each.type in ("int", "float"))  # fields with a mean


def agent_results(manifest: dict[str, Any], table: Table) -> list[AgentResult]:
    """Read each agent's row of the manifest, and its columns of metrics.csv."""
    figures = {name: table.reported_mean(f"test_{name}") for name in manifest["figures"]}  # [N] each
    density, sent = table.last("density"), np.nan_to_num(table.last("sent_bytes"))
    unknown = np.full(len(density), nan)
    labelled = "accuracy" in figures
    last = table.last("test_accuracy") if labelled else unknown
    return [
        AgentResult(
            agent=agent,
            labels=tuple(about["labels"]),
            retention=about["retention"],
            density=float(density[agent]),
            test_accuracy=float(figures.get("accuracy", unknown)[agent]),
            test_accuracy_last=float(last[agent]),
            sent_bytes=float(sent[agent]),
            links=about["links"],
            liar=about.get("liar", False),
            figures={name: float(values[agent]) for name, values in figures.items()},
            **{name: float(figures.get(name.removeprefix("test_"), unknown)[agent]) for name in BY_READOUT},
        )
        for agent, about in enumerate(manifest["agents"])
    ]


def mean_of(values: Iterable[float]) -> float:
    """Average the values that are known; NaN if none is."""
    return nanmean(np.fromiter(values, np.float64))


@dataclass(frozen=True)
class StoredRun:
    """A run, read from its folder; `RunResult`, which needs torch, adds its models."""

    root: Path
    settings: dict[str, Any] = field(repr=False)  # config.toml
    manifest: dict[str, Any] = field(repr=False)
    agents: tuple[AgentResult, ...] = field(repr=False)
    status: str
    round: int
    hash: str | None
    seconds: float
    compared: tuple[StoredRun, ...] = ()
    waiting: tuple[str, ...] = ()

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Read a run or a comparison, finished or not.

        Args:
            path: A run folder.

        Returns:
            Its result so far.

        Raises:
            RunError: The folder is not a run, or a file in it is damaged.
        """
        root = as_path(path, "path")
        compare = root / "compare.toml"
        if not compare.is_file():
            return cls._open_one(root)
        table = read_toml(compare)
        algorithms = (table.get("algorithm"), *table.get("compare", ()))
        arms = dict(zip(arm_names(map(name_of, algorithms)), algorithms, strict=True))
        begun = [name for name in arms if RunFolder(root / name).is_run]
        if not begun:
            raise RunError(f"{root} is a comparison with no run in it yet")
        first, *others = results = [cls._open_one(root / name) for name in begun]
        for name, result in zip(begun, results, strict=True):
            _check_arm({**table, "algorithm": arms[name]}, result.settings, compare, name)
        waiting = tuple(name for name in arms if name not in begun)
        return replace(first, root=root, compared=tuple(others), waiting=waiting)

    @classmethod
    def _open_one(cls, path: Path) -> Self:
        folder = RunFolder(path)
        folder.check_run()
        manifest = read_manifest(folder.manifest)
        check_config(folder, manifest)
        done = read_result(folder.result)
        if not done:
            check_tables_since(folder.checkpoints)
        table = read_table(folder.metrics, agents=len(manifest["agents"]))
        return cls(
            root=path,
            settings=read_toml(folder.config),
            manifest=manifest,
            agents=tuple(agent_results(manifest, table)),
            status=done.get("status", "diverged" if folder.diverged.is_file() else "unfinished"),
            round=done.get("round", int(table.rounds.max(initial=0))),
            hash=done.get("hash"),
            seconds=done.get("seconds", nan),
        )

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return name_of(self.settings["algorithm"])

    @property
    def folder(self) -> RunFolder:
        """The folder of this run's own tables: inside `root` if it was part of a comparison."""
        inner = RunFolder(self.root / self.algorithm)
        return inner if inner.is_run else RunFolder(self.root)

    @property
    def readout(self) -> Readout:
        """The readout that counts."""
        return cast(Readout, self.manifest["readout"])  # checked when it was read

    @property
    def task(self) -> Task:
        """The task of the data: "classification", "multi-label" or "regression"."""
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


def _check_arm(expected: dict[str, Any], found: dict[str, Any], compare: Path, name: str) -> None:
    """Check that compare.toml describes a run inside it; a run that is not extended yet may have fewer rounds."""
    keys = [key for key in expected | found if expected.get(key) != found.get(key) and key not in ("compare", "rounds")]
    rounds = expected.get("rounds")
    if not isinstance(rounds, int) or rounds < found.get("rounds", 0):
        keys.append("rounds")
    if keys:
        raise RunError(
            f"{compare} was changed: {keys[0]} is not as in {name}/config.toml; "
            "restore the file, or start a new run with the changed one"
        )


def name_of(choice: Any) -> str:
    """The name in a table such as `[algorithm]`."""
    return str(choice.get("name", "") if isinstance(choice, dict) else choice)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}; restore the file") from None
