"""A run in MLflow, wherever MLFLOW_TRACKING_URI points."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from peermask.algorithms.contract import Clock
from peermask.errors import RunError
from peermask.experiment.build import Experiment
from peermask.experiment.execution import Status
from peermask.experiment.metrics import Evaluation
from peermask.report.labels import flatten
from peermask.report.observers import summary_of

try:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param
    from mlflow.exceptions import MlflowException
except ImportError as error:
    raise RunError("--mlflow needs mlflow; install it with: pip install 'peermask[mlflow]'") from error

EXPERIMENT = "peermask"
VALUE_LENGTH = 500  # characters of a parameter that MLflow keeps
STATUS = {"finished": "FINISHED", "converged": "FINISHED", "interrupted": "KILLED"}


class MlFlow:
    """An observer that logs a run for each algorithm: the config as parameters, evaluations as metrics."""

    def __init__(self, uri: str | None = None) -> None:
        with _one_line():
            self._client = MlflowClient(tracking_uri=uri)
        self._run = ""

    def begin(self, experiment: Experiment, name: str, round: int) -> None:  # noqa: ARG002
        config = experiment.config
        with _one_line():
            known = self._client.get_experiment_by_name(EXPERIMENT)
            place = known.experiment_id if known else self._client.create_experiment(EXPERIMENT)
            run = self._client.create_run(place, run_name=f"{config.name}-{name}", tags={"config_hash": config.hash})
            self._run = run.info.run_id
            params = [Param(key, value[:VALUE_LENGTH]) for key, value in flatten(config.table()).items()]
            self._client.log_batch(self._run, params=params)

    def round(self, clock: Clock, losses: Tensor, sent_bytes: float) -> None: ...

    def evaluation(self, evaluation: Evaluation) -> None:
        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, evaluation.round) for name, value in summary_of(evaluation).items()]
        with _one_line():
            self._client.log_batch(self._run, metrics=metrics)

    def end(self, status: Status) -> None:
        with _one_line():
            self._client.set_terminated(self._run, STATUS[status])


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except (MlflowException, OSError, ModuleNotFoundError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"mlflow cannot log: {reason}; check MLFLOW_TRACKING_URI, or leave --mlflow out") from error
