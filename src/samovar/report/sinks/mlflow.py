"""MLflow's tracking server, or its files."""

import atexit
import re
import time
from collections.abc import Mapping

import mlflow
from mlflow.entities import Metric, Param

from samovar.core.clock import Deadline
from samovar.report.sinks import Sink, finite_scalars
from samovar.transports.background import Background, Job

_FLUSH_S, _CLOSING_S = 1.0, 10.0
_MOST_WAITING = 100_000  # metrics, while the server does not answer
_MOST_METRICS, _MOST_PARAMETERS, _LONGEST_VALUE = 1000, 100, 500  # of MLflow, in one call
_OTHER_SIGNS = re.compile(r"[^/\w.\- ]")  # than those that MLflow allows in names


class MLflow(Sink):
    """Log to the run that the program has started (`mlflow.start_run`), else to a new one of `experiment`.

    The place is MLflow's own setting (`MLFLOW_TRACKING_URI`). A thread sends metrics together, once a second: MLflow
    tries for minutes to reach a server that is gone.
    """

    def __init__(self, experiment: str | None = None) -> None:
        self._experiment = experiment
        self._waiting: list[Metric] = []
        self._sent_s = 0.0
        self._sending = Background("samovar-mlflow")
        self._sent: Job | None = None

    def begin(self, run: Mapping[str, object]) -> None:
        active = mlflow.active_run()
        self._is_own = active is None
        if active is None:
            if self._experiment is not None:
                mlflow.set_experiment(self._experiment)
            active = mlflow.start_run()
        self._run_id = active.info.run_id
        self._client = mlflow.MlflowClient()
        try:
            taken = self._client.get_run(self._run_id).data.params  # by the program; MLflow takes no second value
            named = ((_OTHER_SIGNS.sub("_", name), str(value)[:_LONGEST_VALUE]) for name, value in run.items())
            parameters = [Param(*one) for one in named if one[0] not in taken]
            for start in range(0, len(parameters), _MOST_PARAMETERS):
                self._client.log_batch(self._run_id, params=parameters[start : start + _MOST_PARAMETERS])
        except BaseException:
            self._end("FAILED")
            raise

    def write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        now_s = time.time()
        found = finite_scalars(kind, values).items()
        self._waiting += [Metric(_OTHER_SIGNS.sub("_", name), value, int(now_s * 1000), step) for name, value in found]
        is_due = now_s - self._sent_s >= _FLUSH_S or len(self._waiting) > _MOST_METRICS // 2
        if is_due and (self._sent is None or self._sent.is_over or len(self._waiting) > _MOST_WAITING):
            self._finish(Deadline.after(0))
            self._send(now_s)

    def close(self) -> None:
        if self._waiting:
            self._send(time.time())
        self._finish(Deadline.after(_CLOSING_S))
        self._sending.close()
        self._end("FINISHED")  # not after an error: it would wait for the server, too

    def _end(self, status: str) -> None:
        if self._is_own:
            mlflow.end_run(status)

    def _send(self, now_s: float) -> None:
        waiting, self._waiting, self._sent_s = self._waiting, [], now_s
        self._sent = self._sending.submit(Job("sending metrics", lambda job: self._log(waiting, job)))

    def _finish(self, deadline: Deadline) -> None:
        """Wait for what was sent. Raises its error, or that of an earlier one."""
        try:
            if self._sent is not None:
                self._sent.wait(deadline)
        except BaseException:
            self._sending.close(0)
            if self._is_own:  # at exit MLflow would end it, and try for minutes to reach the server
                atexit.unregister(mlflow.tracking.fluent._safe_end_run)
            raise

    def _log(self, metrics: list[Metric], job: Job) -> None:
        job.phase = "waits for the tracking server"
        for start in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + _MOST_METRICS])
