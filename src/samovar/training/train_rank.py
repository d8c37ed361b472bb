"""The training job of one rank, from the configuration to the result."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from samovar.collectives.engine import PlannedCollectives, RecordExchange
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.core.host import peak_memory_bytes
from samovar.model.model import layout_of
from samovar.report.records import Finished
from samovar.report.tracing import Voice
from samovar.strategies.box_terms import MEAN, described
from samovar.strategies.center_steps import CenterSteps
from samovar.strategies.hybrid_easgd import GroupCollectives
from samovar.strategies.traits import AUTO
from samovar.strategies.trial import TrialCallback
from samovar.training import build, train_report
from samovar.training.async_pace import TEST_PATIENCE, Agree, AsyncPace, AsyncParts, Master, Run
from samovar.training.context import RankContext
from samovar.training.evaluation import CenterWeights, gather, require_equal
from samovar.training.in_step import NUM_RECORD_FIELDS, InStep
from samovar.training.loop import Duties, Outcome, Requests, first_step, make_schedule, num_steps_of, train_at
from samovar.training.near import near_of, staged_notices
from samovar.training.observer import WorkersObserver, shows_values, worker_figures
from samovar.training.opening import open_training, require_same_data
from samovar.training.ordered_centers import order_of
from samovar.training.resume import resume_from
from samovar.training.run_center import RunCenter
from samovar.training.step import Worker
from samovar.training.testing import evaluate_function, forward_function, test_parts
from samovar.training.tracing import tracing_of
from samovar.transports.base import Region
from samovar.transports.shm import ShmTransport, create_segment

_AGREED_WORDS = 3  # stop signal (at the start: steps done), whether the run is over, the step of the rate


def run_training(context: RankContext) -> None:
    """Train, save, test, and report the result; raises SamovarError."""
    with contextlib.ExitStack() as stack:
        TrainRank(context, stack).run()


class TrainRank:
    """One rank's parts, which `stack` closes."""

    def __init__(self, context: RankContext, stack: contextlib.ExitStack) -> None:
        config = context.config
        self._context, self._config, self._stack = context, config, stack
        self._opened = stack.enter_context(open_training(context))
        caffe, net = self._opened.caffe, self._opened.net
        require_same_data(context, self._opened.reader)
        self._start = None
        if config.snapshot is not None:
            self._start = resume_from(config.snapshot, net, config, context.transport.group.rank)
        self._tracing = tracing_of(context)
        self._order = order_of(context, stack)
        start_step = self._start.step if self._start else 0
        self._center: RunCenter | None = None
        if config.strategy.needs_center:
            layout = layout_of({info.name: info.parameter for info in net.parameter_infos})
            goal = num_steps_of(config, caffe)
            self._center = RunCenter(context, layout, start_step, goal, stack, self._order)
        first = start_step if self._center is None else self._center.first_step
        self._schedule = make_schedule(config, caffe, first)
        callback, trace = TrialCallback(tell=context.inform), self._tracing.trace
        near = stack.enter_context(near_of(context))
        self._learner = build.build_learner(
            config, caffe, net, context.transport, self._start, trace, self._center, callback, near
        )

    def run(self) -> None:
        """Train at this rank's pace, and report the result if this rank is the one that reports it."""
        if not self._config.strategy.is_async:
            outcome = train_at(*self._in_step())
            assert outcome is not None, "in step all ranks have an outcome"
            self._tell_of_all(outcome)
        elif (outcome := train_at(*self._async())) is not None:
            self._tell_of_center(outcome)

    def _in_step(self) -> tuple[InStep, Worker]:
        """The pace of ranks in step, which test, save and stop together."""
        context, learner, schedule, caffe = self._context, self._learner, self._schedule, self._opened.caffe
        tests = test_parts(context, caffe, self._opened.net, self._stack)
        at_boundary = self._tells_notices(shows_values(context, caffe, learner, [test.net for test in tests]))
        at_boundary(schedule.first_step)
        if context.is_first:
            train_report.announce(self._opened, learner, tests, schedule, self._start_notices)
        worker = self._worker(first_step(self._config, schedule))
        observer = self._stack.enter_context(train_report.run_observer(context, caffe, learner, tests, schedule))
        duties = Duties(
            schedule,
            evaluate_function(learner, tests),
            train_report.save_function(context, caffe, learner),
            self._tracing.observing(observer),
        )
        pace = InStep(
            duties,
            schedule,
            RecordExchange(context.transport, NUM_RECORD_FIELDS),
            # The clocks of several hosts do not tell who came last.
            learner.strategy.exchanges_at if self._config.hosts is None else lambda _step: False,
            forward_function(learner, worker),
            at_boundary,
            learner.finite,
            self._config.timeout_s,
        )
        return pace, worker

    def _tells_notices(self, at_boundary: Callable[[int], Requests]) -> Callable[[int], Requests]:
        """Report the notices of a strategy whose ranks share a center in step."""
        strategy = self._learner.strategy
        if not isinstance(strategy, CenterSteps):
            return at_boundary
        voice = _voice(self._context)

        def tells(steps_done: int) -> Requests:
            for text in strategy.take_notices():
                voice.warn(text)
            return at_boundary(steps_done)

        return tells

    def _async(self) -> tuple[AsyncPace, Worker]:
        """The pace of asynchronous ranks; the present master tests, saves and reports."""
        config, learner, center = self._config, self._learner, self._center
        assert center is not None
        assert isinstance(learner.strategy, CenterSteps)
        assert isinstance(learner.evaluated, CenterWeights)
        agree = _agreement(self._context)
        # One number for the group: its ranks may have joined a run at a box at different steps.
        steps_done, _ = agree(center.table.earlier_steps(config.strategy.group_size or 1), None)
        self._context.at_boundary(steps_done)
        self._run = Run(
            center.table, center.headcount, self._schedule.num_steps, _voice(self._context), config.timeout_s
        )
        parts = AsyncParts(learner.strategy, learner.finite, self._order, learner.evaluated, center.lock_wait_s)
        worker = self._worker(steps_done, center.order_index)
        return AsyncPace(self._run, parts, self._become_master, self._context.at_boundary, agree, steps_done), worker

    def _worker(self, step: int, order_index: int | None = None) -> Worker:
        """Read the data from `step`."""
        learner = self._learner
        batches = self._opened.stream(learner.slices, step * learner.parts.count, order_index)
        stream = self._stack.enter_context(batches)
        return build.build_worker(learner, stream, self._config, *self._tracing.attach(learner, step))

    def _become_master(self) -> Master:
        """Make this rank the master, which tests and saves alone while the others continue."""
        opened, learner, schedule, run = self._opened, self._learner, self._schedule, self._run
        caffe, alone = opened.caffe, self._alone()
        assert isinstance(learner.evaluated, CenterWeights)
        tests = test_parts(alone, caffe, opened.net, self._stack)
        # What an earlier master wrote stays.
        steps_kept = max(schedule.first_step, run.table.run_steps())
        sinks = self._stack.enter_context(train_report.open_run_sinks(self._context, steps_kept))
        if not run.table.has_begun:
            train_report.announce(opened, learner, tests, schedule, self._start_notices)
            rule = self._config.stop_rule or MEAN
            run.voice.inform(described(rule, schedule.num_steps, at_box=self._config.box is not None))
        observer = train_report.observer_of(WorkersObserver, alone, sinks, caffe, learner, schedule)
        save = train_report.save_function(alone, caffe, learner)
        duties = Duties(schedule, evaluate_function(learner, tests), save, observer)
        return Master(run, duties, observer, learner.evaluated.settle)

    def _tell_of_all(self, outcome: Outcome) -> None:
        """Compare the replicas; rank 0 reports the result."""
        context, config, learner = self._context, self._config, self._learner
        data, center = self._opened.reader, learner.strategy if isinstance(learner.strategy, CenterSteps) else None
        updates, refused = (0, 0) if center is None else (center.num_updates, center.num_refused)
        sent_bytes = learner.exchanged.bytes_sent + train_report.center_bytes(learner, updates)
        own = [sent_bytes, data.fetched_bytes, data.remote_bytes, data.cached_bytes, peak_memory_bytes(), refused]
        sha256 = self._weights_sha256()
        require_equal(context.transport, sha256, config.timeout_s, config.strategy.name)
        of_all = gather(context.transport, [float(value) for value in own], config.timeout_s)
        moved_per_step = (of_all[:, :3].mean(axis=0) / max(1, outcome.num_steps)).tolist()
        self._tracing.merge(outcome.steps_done)
        if context.is_first:
            result = replace(
                train_report.result_of(self._opened, learner, outcome, sha256, moved_per_step[0]),
                data_bytes_fetched_per_step=moved_per_step[1],
                data_bytes_between_hosts_per_step=moved_per_step[2],
                data_bytes_held=int(of_all[:, 3].sum()),
                peak_memory_bytes=tuple(map(int, filter(None, of_all[:, 4]))),
                refused_by_rank=tuple(map(int, of_all[:, 5])) if of_all[:, 5].any() else (),
            )
            context.writer.write(Finished(result=result))

    def _tell_of_center(self, outcome: Outcome) -> None:
        """Report the result of the run: the center, and the figures of each worker."""
        assert self._center is not None
        config, learner, states = self._config, self._learner, self._run.table.states()
        sha256 = self._weights_sha256()
        sent_bytes = train_report.center_bytes(learner, sum(state.num_updates for state in states))
        num_steps = sum(state.steps_done - self._schedule.first_step for state in states)
        in_group = {"shm" if config.transport == AUTO else config.transport}
        names = self._center.transports | (in_group if (config.strategy.group_size or 1) > 1 else set())
        result = replace(
            train_report.result_of(self._opened, learner, outcome, sha256, sent_bytes / max(1, num_steps)),
            transport=", ".join(sorted(names)),
            replicas_equal=None,
            box=config.box,
            buffer=config.buffer,
            stop_rule=config.stop_rule,
            by_worker=tuple(worker_figures(state) for state in states),
        )
        self._context.writer.write(Finished(result=result))
        self._run.table.has_told()

    def _weights_sha256(self) -> str:
        learner = self._learner
        with learner.with_evaluated_weights():
            return learner.model.weights.sha256(tuple(info.name for info in learner.net.parameter_infos))

    def _alone(self) -> RankContext:
        """A context without others."""
        segment = create_segment(1)
        self._stack.callback(os.close, segment)
        transport = ShmTransport(segment, Group(0, 1), oversubscribed=self._config.oversubscribed)
        config = replace(self._config, hosts=None)
        return replace(self._context, transport=transport, lasting=transport, config=config)

    @property
    def _start_notices(self) -> tuple[str, ...]:
        return (*(self._start.notices if self._start else ()), *staged_notices(self._config, self._context.device))


def _voice(context: RankContext) -> Voice:
    """Messages to the user. A warning is shown once for all ranks that have the same text before the colon."""

    def warn(text: str) -> None:
        context.tell("warning", f"rank {context.transport.group.rank}: {text}", text.partition(":")[0])

    return Voice(partial(context.tell, "info"), warn)


def _agreement(context: RankContext) -> Agree:
    """The decision of a group's first rank, for all ranks of a group that steps together."""
    size = context.config.strategy.group_size
    if size is None or size == 1:
        return lambda number, rate_step: (number, rate_step)
    group = GroupCollectives(PlannedCollectives(context.transport, lambda _num_bytes: "tree"), size, "tree")
    memory = group.region("agreement", 8 * _AGREED_WORDS)
    words = Region(memory.window, memory.offset, memory.array.view(np.float64))
    broadcast = group.broadcast("agreement", words)
    deadline = partial(Deadline.after, TEST_PATIENCE * context.config.timeout_s)
    first = context.transport.group.rank - group.group.rank
    context.meet(range(first, first + size), deadline())

    def agree(number: int, rate_step: int | None) -> tuple[int, int | None]:
        if group.group.rank == 0:
            words.array[:] = number, rate_step is None, rate_step or 0
        broadcast.run(deadline())
        return int(words.array[0]), None if words.array[1] else int(words.array[2])

    return agree
