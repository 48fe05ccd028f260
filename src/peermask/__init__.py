"""peermask: agents on a graph learn personal sparse models by gossiping binary masks.

import peermask

config = peermask.load_config("experiment.toml")
result = peermask.run_experiment(config)
print(result.mean_accuracy, result.sent_bytes)
models = result.local_models()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peermask.algorithms.contract import Algorithm
    from peermask.data.arrays import from_arrays, from_torch
    from peermask.errors import PeermaskError
    from peermask.experiment.config import ExperimentConfig, load_config, make_config
    from peermask.experiment.execution import Execution
    from peermask.experiment.result import RunResult
    from peermask.experiment.runner import resume_experiment, run_experiment
    from peermask.export.rebuild import load_ticket

__all__ = [
    "Algorithm",
    "Execution",
    "ExperimentConfig",
    "PeermaskError",
    "RunResult",
    "from_arrays",
    "from_torch",
    "load_config",
    "load_ticket",
    "make_config",
    "resume_experiment",
    "run_experiment",
]

# Where each public name lives. They are imported when first used: importing torch takes seconds, and a command
# line that is interrupted meanwhile should end quietly.
_HOMES = {
    "Algorithm": "peermask.algorithms.contract",
    "Execution": "peermask.experiment.execution",
    "ExperimentConfig": "peermask.experiment.config",
    "PeermaskError": "peermask.errors",
    "RunResult": "peermask.experiment.result",
    "from_arrays": "peermask.data.arrays",
    "from_torch": "peermask.data.arrays",
    "load_config": "peermask.experiment.config",
    "load_ticket": "peermask.export.rebuild",
    "make_config": "peermask.experiment.config",
    "resume_experiment": "peermask.experiment.runner",
    "run_experiment": "peermask.experiment.runner",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # slow, like all that is imported late

        return version("peermask")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
