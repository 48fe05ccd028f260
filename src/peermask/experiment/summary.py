"""What result.json holds."""

from __future__ import annotations

from math import isnan
from typing import Any

from peermask.errors import RunError
from peermask.experiment.agent_result import BY_READOUT, agent_results, mean_of
from peermask.experiment.build import Experiment
from peermask.experiment.checked import read_manifest
from peermask.experiment.checkpoint import Progress
from peermask.experiment.folder import RunFolder
from peermask.experiment.metrics import figures_of
from peermask.experiment.table import read_rows


def summary_of(experiment: Experiment, folder: RunFolder, status: str, progress: Progress, hash: str) -> dict[str, Any]:
    rows = read_rows(folder.metrics)
    agents = agent_results(read_manifest(folder.manifest), rows)
    evaluated = {int(row["agent"]) for row in rows if int(row["round"]) == progress.round}
    for agent in agents:
        if agent.agent not in evaluated:
            lacking = f"agent {agent.agent} in round {progress.round}"
            raise RunError(f"{folder.metrics} lacks {lacking}; restore the file, or start a new run")
    honest = [agent for agent in agents if not agent.liar]
    figures = figures_of(experiment.dataset.task, experiment.further_metrics)
    means = {f"test_{name}": mean_of([agent.value(name) for agent in honest]) for name in figures}
    if experiment.dataset.has_labels:
        means |= {
            name: mean_of([getattr(agent, name) for agent in honest])
            for name in ("test_accuracy", "test_accuracy_tail", *BY_READOUT)
        }
    main = [agent.value(figures[0]) for agent in honest]
    return {
        "status": status,
        "round": progress.round,
        "hash": hash,
        "seconds": round(progress.seconds, 3),
        "algorithm": experiment.config.algorithm.name,
        "readout": experiment.readout,
        # None where no agent has anything to be tested on: NaN is no JSON.
        **{name: None if isnan(mean) else mean for name, mean in means.items()},
        f"worst_test_{figures[0]}": min((value for value in main if not isnan(value)), default=None),
        "sent_bytes": sum(agent.sent_bytes for agent in agents),
    }
