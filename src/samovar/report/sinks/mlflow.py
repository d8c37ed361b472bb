"""MLflow's tracking server, or its files."""

import re
import time
from collections.abc import Mapping

import mlflow
from mlflow.entities import Metric, Param

from samovar.report.sinks.base import Sink, finite_scalars

_FLUSH_S = 1.0
_MOST_METRICS, _MOST_PARAMETERS = 1000, 100  # of MLflow, in one call
_LONGEST_VALUE = 500
_OTHER_SIGNS = re.compile(r"[^/\w.\- ]")  # than those that MLflow allows in names


class MLflow(Sink):
    """Log to the run that the program has started (`mlflow.start_run`), else to a new one of `experiment`.

    The place is MLflow's own setting (`MLFLOW_TRACKING_URI`). Metrics are sent together, once a second.
    """

    def __init__(self, experiment: str | None = None) -> None:
        self._experiment = experiment
        self._is_own = False
        self._run_id = ""
        self._waiting: list[Metric] = []
        self._sent_s = 0.0

    def begin(self, run: Mapping[str, object]) -> None:
        active = mlflow.active_run()
        self._is_own = active is None
        if active is None:
            if self._experiment is not None:
                mlflow.set_experiment(self._experiment)
            active = mlflow.start_run()
        self._run_id = active.info.run_id
        self._client = mlflow.MlflowClient()
        parameters = [Param(_OTHER_SIGNS.sub("_", name), str(value)[:_LONGEST_VALUE]) for name, value in run.items()]
        try:
            for start in range(0, len(parameters), _MOST_PARAMETERS):
                self._client.log_batch(self._run_id, params=parameters[start : start + _MOST_PARAMETERS])
        except BaseException:
            self._end("FAILED")
            raise

    def write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        now_s = time.time()
        found = finite_scalars(kind, values).items()
        self._waiting += [Metric(_OTHER_SIGNS.sub("_", name), value, int(now_s * 1000), step) for name, value in found]
        if now_s - self._sent_s >= _FLUSH_S or len(self._waiting) > _MOST_METRICS // 2:
            self._send(now_s)

    def close(self) -> None:
        try:
            self._send(time.time())
        finally:
            self._end("FINISHED")

    def _end(self, status: str) -> None:
        if self._is_own:
            mlflow.end_run(status)

    def _send(self, now_s: float) -> None:
        waiting, self._waiting, self._sent_s = self._waiting, [], now_s
        for start in range(0, len(waiting), _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=waiting[start : start + _MOST_METRICS])
