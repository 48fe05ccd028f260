"""peermask: agents on a graph learn personal sparse models by exchanging binary masks.

Examples:
    >>> import peermask
    >>> config = peermask.make_config({"agents": 4, "rounds": 2, "retention": 0.3, "model": "mlp"})
    >>> result = peermask.run_experiment(config, "run")
    >>> result.status, len(result.local_models())
    ('finished', 4)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peermask.algorithms.contract import Agents, Algorithm, Clock, LocalData, Setting
    from peermask.config.experiment import ExperimentConfig
    from peermask.config.file import load_config, make_config
    from peermask.data.arrays import from_arrays
    from peermask.data.table import from_dataframe
    from peermask.data.torch_dataset import from_torch
    from peermask.errors import PeermaskError
    from peermask.exports.predict import evaluate
    from peermask.exports.rebuild import load_ticket
    from peermask.exports.write import export
    from peermask.graph.mixing import Mixing
    from peermask.models.pretrained import without_batch_norm
    from peermask.registry import Options
    from peermask.reports.observers import summary_of
    from peermask.reports.page import report
    from peermask.run.data_summary import DataSummary, describe_data
    from peermask.run.execution import Execution, ProgressLine
    from peermask.run.plan import Plan, plan
    from peermask.run.rank_group import join_ranks
    from peermask.run.result import RunResult
    from peermask.run.runner import resume_experiment, run_experiment
    from peermask.run.start import take_part
    from peermask.wire.schema import Payload

__all__ = [
    "Agents", "Algorithm", "Clock", "DataSummary", "Execution", "ExperimentConfig", "LocalData", "Mixing", "Options",
    "Payload", "PeermaskError", "Plan", "ProgressLine", "RunResult", "Setting", "describe_data", "evaluate", "export",
    "from_arrays", "from_dataframe", "from_torch", "join_ranks", "load_config", "load_ticket", "make_config", "plan",
    "report", "resume_experiment", "run_experiment", "summary_of", "take_part", "without_batch_norm",
]  # fmt: skip

# Where each public name lives. They are imported when first used: importing torch takes seconds, and a command
# line that is interrupted meanwhile should end quietly.
_MODULES = {
    "algorithms.contract": "Agents Algorithm Clock LocalData Payload Setting",
    "config.experiment": "ExperimentConfig",
    "config.file": "load_config make_config",
    "data.arrays": "from_arrays",
    "data.table": "from_dataframe",
    "data.torch_dataset": "from_torch",
    "errors": "PeermaskError",
    "exports.predict": "evaluate",
    "exports.rebuild": "load_ticket",
    "exports.write": "export",
    "graph.mixing": "Mixing",
    "models.pretrained": "without_batch_norm",
    "registry": "Options",
    "reports.observers": "summary_of",
    "reports.page": "report",
    "run.execution": "Execution ProgressLine",
    "run.data_summary": "DataSummary describe_data",
    "run.plan": "Plan plan",
    "run.rank_group": "join_ranks",
    "run.result": "RunResult",
    "run.runner": "resume_experiment run_experiment",
    "run.start": "take_part",
}
_HOMES = {name: f"peermask.{module}" for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # slow, like all that is imported late

        return version("peermask")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
