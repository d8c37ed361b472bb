"""A finished run and its prediction: what `samovar.predict.foresight` needs of a run of `samovar train`."""

from dataclasses import replace

from samovar.config import RunConfig
from samovar.core.device import CPU
from samovar.predict.kept import Ran, Subject, foreseen
from samovar.report.result import RunResult
from samovar.strategies.traits import AUTO


def with_foresight(config: RunConfig, result: RunResult) -> RunResult:
    """The result with its prediction, if there can be one; see `samovar.predict.foresight.close_loop`."""
    is_plain = config.box is None and config.device == CPU and result.stopped_by is None and not result.factors
    if not is_plain or config.transport != AUTO:
        return result
    rates = [one.samples_per_second for one in result.by_worker if not one.is_gone]
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
    )
    return replace(result, foreseen=foreseen(ran))
