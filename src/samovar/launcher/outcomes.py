"""How a run ended, as one process tells others that wait for it: a result without its folder, or an error."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from samovar.core.errors import DeadlineExceeded, InputError, NotFinite, RankFailed, ReplicasDiffer, SamovarError
from samovar.report.plain import from_plain, to_plain
from samovar.report.result import RunResult

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
