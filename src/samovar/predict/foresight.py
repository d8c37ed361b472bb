"""The loop closed: a run that has ended is predicted from what is kept of this machine, and both are compared."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from samovar.collectives.plans import ALL_REDUCE_NAMES
from samovar.core.machine import NOMINAL, CalibrationRecord
from samovar.predict.cluster import cluster_here
from samovar.predict.kept import Kept, Ran, is_quiet
from samovar.predict.plans import plans_for
from samovar.predict.runs import SharingChoice, run
from samovar.predict.work import Segment, work_of
from samovar.report.profile import BYTES_OF_A_FLOAT, LayerProfile, Profile
from samovar.report.result import Foreseen

_LEAST_STEPS = 20
_MOST_WORKERS = 64  # a simulation of more takes seconds
_FORWARD_SHARE = 1 / 3


def close_loop(folder: Path | None, ran: Ran) -> Foreseen | None:
    """Keep one worker's step time; compare that of several with its prediction, and keep the error.

    None if there is nothing to predict from: a profile of the net, and the figures of this machine, which
    `samovar doctor` keeps. None also on a busy machine, and if compute threads share cores. Cost: a simulation of some
    steps, 20 us a message.
    """
    kept = Kept(folder)
    is_short = ran.num_steps < _LEAST_STEPS or not 0 < ran.step_s < math.inf
    if folder is None or is_short or ran.workers > _MOST_WORKERS or not is_quiet(ran.busy):
        return None
    if ran.workers == 1:
        if ran.batch_size:  # the seconds of a step of nobody knows how many samples predict nothing
            kept.keep_profile(ran.subject, _whole(ran), is_whole=True)
        return None
    profile = kept.profile(ran.subject)
    machine = kept.machine() if ran.calibration is NOMINAL else ran.calibration
    if profile is None or machine is None or ran.ranks_per_host * ran.subject.threads > machine.cores:
        return None
    foreseen = foreseen_of(ran, profile, machine)
    kept.keep_run(foreseen)
    return foreseen


def foreseen_of(ran: Ran, profile: Profile, machine: CalibrationRecord) -> Foreseen:
    """The step time of the same strategy, cut and plan, simulated on hosts like this one."""
    here, batch_size = cluster_here(machine), ran.batch_size or profile.batch_size
    cluster = replace(here, node=replace(here.node, workers=ran.ranks_per_host))
    work = work_of(profile, here.worker, batch_size, here.slower(min(ran.workers, ran.ranks_per_host)))
    plan = ran.collective if ran.collective in ALL_REDUCE_NAMES else None
    fastest = plans_for(cluster, ran.workers).fastest
    lengths = _lengths(work.segments, ran.bucket_sizes_bytes)
    config = ran.sharing
    if lengths is not None:
        config = replace(config, bucket_size_bytes=None, automatic_buckets=True)
    choice = SharingChoice(config, (lambda _: plan) if plan else fastest, lengths)
    found = run(choice, cluster, work, ran.workers)
    predicted_s = ran.workers * work.batch_size / found.samples_per_s
    kind = cluster.kind_of(ran.workers, found.settled.needs_center)
    return Foreseen(
        cluster=kind,
        net=ran.subject.net,
        strategy=ran.strategy.name,
        workers=ran.workers,
        predicted_s=predicted_s,
        measured_s=ran.step_s,
        profile=profile.source,
    )


def _lengths(segments: Sequence[Segment], sizes_bytes: Sequence[int]) -> tuple[int, ...] | None:
    """How many segments, from the last, each bucket of a run had; None if the run does not tell."""
    if len(sizes_bytes) < 2:
        return None
    found, left = [0], list(sizes_bytes)
    for segment in reversed(segments):
        if len(left) > 1 and left[0] < BYTES_OF_A_FLOAT * segment.num_parameters and found[-1]:
            left.pop(0)
            found.append(0)
        left[0] -= BYTES_OF_A_FLOAT * segment.num_parameters
        found[-1] += 1
    return tuple(found)


def _whole(ran: Ran) -> Profile:
    """One worker's step as one layer: its update, and what it waits for its data, are in it."""
    forward_s = _FORWARD_SHARE * ran.step_s
    counts = (ran.subject.num_parameters - ran.num_unlearned, 0, 0, forward_s, ran.step_s - forward_s)
    layer = LayerProfile("whole net", "", *counts, num_unlearned=ran.num_unlearned)
    batch_size, source = max(1, round(ran.batch_size)), "a run with one worker"
    return Profile(ran.subject.net, batch_size, (layer,), source, 0.0, busy=ran.busy)
