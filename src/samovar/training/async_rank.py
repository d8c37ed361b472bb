"""The training job of a rank that waits for no other, from the configuration to the result."""

import contextlib
import os
from dataclasses import replace

import numpy as np

from samovar.collectives.engine import PlannedCollectives
from samovar.core.clock import Deadline
from samovar.core.group import Group
from samovar.membership.progress_table import ProgressTable
from samovar.model.model import layout_of
from samovar.report.metrics import MetricsWriter
from samovar.report.records import Finished, Notice
from samovar.report.run_folder import RunFolder
from samovar.strategies.box_terms import MEAN, described
from samovar.strategies.center_steps import CenterSteps
from samovar.strategies.hybrid_easgd import GroupCollectives
from samovar.training import build
from samovar.training.async_evaluated import CenterWeights
from samovar.training.async_master import Master
from samovar.training.async_observer import WorkersObserver, worker_figures
from samovar.training.async_order import order_of
from samovar.training.async_training import Agree, AsyncParts, AsyncTraining
from samovar.training.center_box import CenterBox
from samovar.training.context import RankContext
from samovar.training.course import LiveRates
from samovar.training.joined_box import JoinedBox
from samovar.training.loop import Outcome
from samovar.training.observer import remedy_for
from samovar.training.opening import open_training
from samovar.training.own_box import OwnBox
from samovar.training.resume import resume_from
from samovar.training.schedule import make_schedule
from samovar.training.train_rank import announce, center_bytes, result_of, save_function
from samovar.training.train_tests import evaluate_function, test_parts
from samovar.transports.base import Region
from samovar.transports.shm import ShmTransport, create_segment

_AGREED_WORDS = 3  # stop signal (at the start: steps done), whether the run is over, the step of the rate


def run_free_training(context: RankContext) -> None:
    """Train at this rank's own speed; the master of the moment tests, saves and tells. Raises SamovarError."""
    with contextlib.ExitStack() as stack:
        rank = AsyncRank(context, stack)
        outcome = rank.training().run()
        if outcome is not None:
            rank.tell_result(outcome)
            rank.crew.has_told()


class AsyncRank:
    """One rank's parts, which `stack` closes."""

    def __init__(self, context: RankContext, stack: contextlib.ExitStack) -> None:
        config, rank = context.config, context.transport.group.rank
        self._context, self._stack = context, stack
        self._opened = stack.enter_context(open_training(context))
        start = None
        if config.snapshot is not None:
            start = resume_from(config.snapshot, self._opened.net, config, rank)
        self._start_notices = start.notices if start else ()
        self._order = order_of(context, stack)
        self._box = self._open_box(start.step if start else 0)
        self._schedule = make_schedule(config, self._opened.caffe, self._box.first_step)
        self._agree = _agreement(context)
        self._learner = build.build_learner(
            config, self._opened.caffe, self._opened.net, context.transport, start, box=self._box
        )

    def _open_box(self, first_step: int) -> CenterBox:
        """The run's own, which its launcher holds, or the one that --box names."""
        if self._context.config.box is None:
            return OwnBox(self._context, first_step, self._order.seen)
        opened = self._opened
        layout = layout_of({info.name: info.parameter for info in opened.net.parameter_infos})
        return JoinedBox(self._context, opened.caffe, layout, first_step, self._stack)

    @property
    def crew(self) -> ProgressTable:
        return self._box.crew

    def training(self) -> AsyncTraining:
        """This rank's loop."""
        context, learner, crew = self._context, self._learner, self._box.crew
        assert isinstance(learner.strategy, CenterSteps)
        assert isinstance(learner.evaluated, CenterWeights)
        # One number for the group: each of it may have come when the run at a box was elsewhere.
        steps_done, _ = self._agree(crew.earlier_steps(context.config.strategy.group_size or 1), None)
        context.at_boundary(steps_done)
        first_batch, order_index = steps_done * learner.parts.count, self._box.order_index
        stream = self._stack.enter_context(self._opened.stream(learner.slices, first_batch, order_index))
        updates = self._order.updates(learner.solver)
        worker = build.build_worker(learner, stream, context.config, updates, None)
        return AsyncTraining(
            AsyncParts(worker, learner.strategy, learner.finite, updates, learner.evaluated, self._box.lock_wait_s),
            crew,
            self._order.course(LiveRates(crew.run_steps, self._schedule.num_steps)),
            self._become_master,
            context.at_boundary,
            self._agree,
            PipeVoice(context),
            self._order.end,
            context.config.timeout_s,
            steps_done,
        )

    def tell_result(self, outcome: Outcome) -> None:
        """What the run came to: the center, and how each worker got on."""
        learner, states = self._learner, self._box.crew.states()
        with learner.with_evaluated_weights():
            sha256 = learner.model.weights.sha256(tuple(info.name for info in learner.net.parameter_infos))
        sent_bytes = center_bytes(learner, sum(state.num_updates for state in states))
        num_steps = sum(state.steps_done - self._schedule.first_step for state in states)
        sent_per_step = sent_bytes / max(1, num_steps)
        result = replace(
            result_of(self._opened, learner, outcome, sha256, sent_per_step, 0.0),
            transport=self._transports,
            replicas_equal=None,
            box=self._context.config.box,
            buffer=self._context.config.buffer,
            stop_rule=self._context.config.stop_rule,
            by_worker=tuple(worker_figures(state) for state in states),
        )
        self._context.writer.write(Finished(result=result))

    @property
    def _transports(self) -> str:
        """How weights came to the center and back, and gradients to others of a group."""
        names = self._box.transports | ({"shm"} if (self._context.config.strategy.group_size or 1) > 1 else set())
        return ", ".join(sorted(names))

    def _become_master(self) -> Master:
        """With the means to test and save alone, while the others go on."""
        opened, learner, schedule = self._opened, self._learner, self._schedule
        caffe, alone = opened.caffe, self._alone()
        assert isinstance(learner.evaluated, CenterWeights)
        tests = test_parts(alone, caffe, opened.net, self._stack)
        metrics = self._stack.enter_context(MetricsWriter(RunFolder(alone.config.out).metrics, self._steps_kept()))
        if not self._box.crew.has_begun:
            announce(opened, learner, tests, schedule, self._start_notices)
            rule = described(
                self._context.config.stop_rule or MEAN, schedule.num_steps, at_box=self._context.config.box is not None
            )
            alone.writer.write(Notice(level="info", text=rule))
        observer = WorkersObserver(
            alone.writer,
            metrics,
            learner.solver.config.policy,
            schedule.num_steps,
            caffe.display,
            caffe.average_loss,
            remedy_for(self._context.config.strategy),
            shows_test_loss=caffe.test_compute_loss,
        )
        save = save_function(alone, caffe, learner)
        return Master(
            self._box.crew,
            schedule,
            evaluate_function(learner, tests),
            observer,
            save,
            learner.evaluated.settle,
            PipeVoice(self._context).warn,
            self._context.config.timeout_s,
        )

    def _steps_kept(self) -> int:
        """The steps that metrics.jsonl may know: what an earlier master wrote stays."""
        return max(self._schedule.first_step, self._box.crew.run_steps())

    def _alone(self) -> RankContext:
        """A context without others."""
        segment = create_segment(1)
        self._stack.callback(os.close, segment)
        transport = ShmTransport(segment, Group(0, 1), oversubscribed=self._context.config.oversubscribed)
        return replace(self._context, transport=transport)


class PipeVoice:
    """Tells the user, through the launcher."""

    def __init__(self, context: RankContext) -> None:
        self._writer, self._rank = context.writer, context.transport.group.rank

    def inform(self, text: str) -> None:
        self._writer.write(Notice(level="info", text=text))

    def warn(self, text: str) -> None:
        """Once for all ranks that say the same, but for the reasons behind the colon."""
        topic = text.partition(":")[0]
        self._writer.write(Notice(level="warning", text=f"rank {self._rank}: {text}", topic=topic))


def _agreement(context: RankContext) -> Agree:
    """What the first of a group that steps together decides, for all of it."""
    size = context.config.strategy.group_size
    if size is None or size == 1:
        return lambda number, rate_step: (number, rate_step)
    group = GroupCollectives(PlannedCollectives(context.transport, lambda _num_bytes: "tree"), size, "tree")
    memory = group.region("agreement", 8 * _AGREED_WORDS)
    words = Region(memory.window, memory.offset, memory.array.view(np.float64))
    broadcast = group.broadcast("agreement", words)

    def agree(number: int, rate_step: int | None) -> tuple[int, int | None]:
        if group.group.rank == 0:
            words.array[:] = number, rate_step is None, rate_step or 0
        broadcast.run(Deadline.after(context.config.timeout_s))
        return int(words.array[0]), None if words.array[1] else int(words.array[2])

    return agree
