"""How a run ended: compared with its prediction, and as one process tells others that wait for it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from samovar.config import RunConfig
from samovar.core.device import CPU
from samovar.core.errors import DeadlineExceeded, InputError, NotFinite, RankFailed, ReplicasDiffer, SamovarError
from samovar.core.plain import from_plain, to_plain
from samovar.predict.kept import Ran, Subject, foreseen
from samovar.report.result import RunResult
from samovar.strategies.traits import AUTO

_ERRORS: Mapping[str, type[SamovarError]] = {
    error.__name__: error for error in (InputError, DeadlineExceeded, NotFinite, RankFailed, ReplicasDiffer)
}


def told(outcome: RunResult | BaseException | None) -> dict[str, Any]:
    """The outcome as JSON can hold it."""
    if isinstance(outcome, BaseException):
        code = getattr(outcome, "exit_code", SamovarError.exit_code)
        return {"error": str(outcome) or type(outcome).__name__, "kind": type(outcome).__name__, "exit_code": code}
    return {"result": None if outcome is None else to_plain(replace(outcome, run_folder=None))}


def heard(message: Mapping[str, Any]) -> RunResult | SamovarError | None:
    """The outcome that `told` gave."""
    if "error" in message:
        return error_of(message["kind"], message["error"], message["exit_code"])
    return None if message["result"] is None else from_plain(RunResult, message["result"])


def error_of(kind: str, sentence: str, exit_code: int, otherwise: type[SamovarError] = SamovarError) -> SamovarError:
    """An error that another process reported; `otherwise` is the class of one whose kind has no class here."""
    error = _ERRORS.get(kind, otherwise)(sentence)
    error.exit_code = exit_code
    return error


def with_foresight(config: RunConfig, result: RunResult, busy: float) -> RunResult:
    """The result with its prediction, if there can be one; see `samovar.predict.foresight.close_loop` and `Ran`."""
    is_plain = config.box is None and config.device == CPU and result.stopped_by is None and not result.factors
    if not is_plain or config.transport != AUTO or any(one.is_gone for one in result.by_worker):
        return result
    rates = [one.samples_per_second for one in result.by_worker]
    samples_per_s = sum(rates) if rates else result.samples_per_second
    ran = Ran(
        Subject(result.net, result.net_parameters, result.threads_per_worker, result.precision),
        config.strategy,
        result.workers,
        result.workers if config.hosts is None else max(config.hosts.sizes),
        result.effective_batch / result.workers,
        result.effective_batch / samples_per_s if samples_per_s else 0.0,
        result.samples // max(1, result.effective_batch),
        result.collective.partition(" ")[0],
        result.bucket_sizes_bytes,
        config.calibration,
        busy,
        result.net_unlearned,
    )
    return replace(result, foreseen=foreseen(ran))
