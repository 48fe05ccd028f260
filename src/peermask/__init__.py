"""peermask: agents on a graph learn personal sparse models by gossiping binary masks.

import peermask

config = peermask.load_config("experiment.toml")
result = peermask.run_experiment(config)
print(result.mean_accuracy, result.sent_bytes)
models = result.local_models()
"""

from peermask.algorithms.contract import Algorithm, algorithms
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
    "algorithms",
    "from_arrays",
    "from_torch",
    "load_config",
    "load_ticket",
    "make_config",
    "resume_experiment",
    "run_experiment",
]
