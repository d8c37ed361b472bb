"""The schedule of a training run, from its solver: for `samovar train`, and exactly Caffe's for `caffe train`."""

from samovar.config import RunConfig
from samovar.core.errors import InputError
from samovar.frontends.caffe.solver import CaffeSolver, solver_config
from samovar.training.loop import Schedule


def make_schedule(config: RunConfig, caffe: CaffeSolver, first_step: int) -> Schedule:
    """The schedule from step `first_step`; InputError if no steps are left, or the policy ends before them."""
    num_steps = num_steps_of(config, caffe)
    if first_step > num_steps:
        raise InputError(
            f"--snapshot {config.snapshot}: it has {first_step} steps, but the run ends at {num_steps}; "
            "raise max_iter or --iterations"
        )
    solver_config(caffe).policy.rate(max(0, num_steps - 1))  # a policy that ends before the run says so now
    if config.by_caffe:
        return _as_caffe(caffe, first_step, num_steps)
    # Without a step this run has nothing new to save, and perhaps less.
    save_at_end = first_step < num_steps or not config.keeps_snapshot
    return _plain(caffe, first_step, num_steps, save_at_end=save_at_end)


def num_steps_of(config: RunConfig, caffe: CaffeSolver) -> int:
    """--iterations, else the solver's max_iter."""
    return caffe.max_iter if config.iterations is None else config.iterations


def first_step(config: RunConfig, schedule: Schedule) -> int:
    """The step whose batches are read first. Caffe starts at the first record, even when it resumes."""
    if config.by_caffe and config.snapshot is not None and not config.snapshot.is_dir():
        return 0
    return schedule.first_step


def _plain(caffe: CaffeSolver, first_step: int, num_steps: int, *, save_at_end: bool) -> Schedule:
    """Test at the end in any case."""
    return Schedule(
        first_step,
        num_steps,
        test_interval=caffe.test_interval,
        test_at_start=caffe.test_initialization and first_step == 0 and caffe.test_interval > 0,
        snapshot_interval=caffe.snapshot,
        save_at_end=save_at_end,
    )


def _as_caffe(caffe: CaffeSolver, first_step: int, num_steps: int) -> Schedule:
    """Test at the end if it is due, after a forward pass for the display; save at the end if the solver says so."""
    interval = caffe.test_interval
    return Schedule(
        first_step,
        num_steps,
        test_interval=interval,
        test_at_start=_divides(interval, first_step)
        and first_step < num_steps
        and (first_step > 0 or caffe.test_initialization),
        snapshot_interval=caffe.snapshot,
        save_at_end=caffe.snapshot_after_train and (first_step < num_steps or not _divides(caffe.snapshot, num_steps)),
        forward_at_end=_divides(caffe.display, num_steps),
        test_at_end=_divides(interval, num_steps),
        is_prompt=True,
    )


def _divides(interval: int, number: int) -> bool:
    return interval > 0 and number % interval == 0
