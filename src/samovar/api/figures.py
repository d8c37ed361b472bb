"""The figures of one rank's loop: the seconds of its steps by kind, samples, losses, and what other ranks tell."""

import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from samovar.api.emulated import ComputePace
from samovar.api.figures_wanted import FiguresWanted, RunFile, open_wanted, say, warn, workers_values
from samovar.api.process_group import Announcer, ProcessGroup
from samovar.api.profile import LoopProfile, compare
from samovar.api.uneven_inputs import Rows
from samovar.box.board import Row
from samovar.collectives.engine import Collectives, PlannedCollectives, TracedCollectives
from samovar.core.clock import Pace
from samovar.core.errors import SamovarError
from samovar.core.host import Others, family_seconds
from samovar.core.trace import Span, Trace
from samovar.frontends.torch.backward_pass import BackwardPass
from samovar.frontends.torch.late import Losses, number_of
from samovar.frontends.torch.optimizers import Optimizers
from samovar.model.layer_spans import LayerSpans
from samovar.report.sinks import Sink, close_all
from samovar.report.steps import Advice, Figures, Laps, RunFigures, StepDone, StepTimes, last_to_arrive
from samovar.report.tracing import Tracing, Voice
from samovar.strategies.config import StrategyConfig
from samovar.transports.torch_dist import NearCollectives

_SAME_LOSSES: Final = 3
_ALONE_EVERY_S: Final = 1.0  # reading a loss from a device waits for it
_WORKERS_EVERY_S: Final = 1.0
_Batch = TypeVar("_Batch")


class ReplicaFigures:
    """The figures of one replica, on one rank.

    A step begins when the loop asks a shard for data; without a shard, when the last step ends. All that the loop does
    until `backward` counts as the forward pass, and all that it does from there to `step` as the update.

    A rank's figures travel with its next call that all ranks make. So a step is reported during the next one, at no
    message and no wait of its own. Strategies that exchange seldom report several steps together.
    """

    def __init__(
        self, processes: ProcessGroup, config: StrategyConfig, wanted: FiguresWanted, lr: Callable[[], float]
    ) -> None:
        group = processes.group
        self.num_samples = self._num_made = 0  # samples and steps of this replica
        self._rank, self._num_ranks = group.rank, group.world_size
        home = processes.home
        self._has_one_clock = home is None or home.address is None
        ranks_per_host = group.world_size if home is None or home.address is None else len(home.ranks)
        self._places = group.world_size, ranks_per_host
        self._others = Others(own_s=lambda: ranks_per_host * family_seconds())
        self._reduces_gradients = not config.exchanges_weights or config.traits.in_groups
        self._config, self._wanted, self._lr = config, wanted, lr
        self._emulated, self._pacing = processes.emulated, cast(ComputePace | None, None)
        self.is_foreseen = processes.emulated is None  # and no worker besides these ranks takes part
        self._file: RunFile | None = None
        self._sinks: list[Sink] = []
        self._end = weakref.finalize(self, close_all, self._sinks)  # which the interpreter's exit calls too
        self._run = RunFigures(Advice.of_loop(config.exchanges_weights), self._sinks)
        self._pace = Pace()
        self._laps = Laps()
        self._tracing: Tracing | None = None
        self._layers: LayerSpans | None = None
        self._profile: LoopProfile | None = None
        self._last_loss: torch.Tensor | None = None
        self._losses = Losses()
        self._times = StepTimes()
        self._num_steps = self._num_samples_told = self._num_fetched = self._steps_told = 0
        self._posted: tuple[int, StepTimes] | None = None
        self._same = SameLosses()
        self._has_met = self._is_open = self._has_passed = self._was_away = self._steps_alone = False
        self._waits = False  # whether an exchange waits for a device
        self._workers: dict[int, Row] = {}
        self._told_s = self._workers_s = -math.inf

    def traced(self, collectives: Collectives) -> Collectives:
        """The collectives of the exchange, whose runs show in the trace if there is one."""
        self._waits = not isinstance(collectives, NearCollectives)
        window, folder = self._wanted.trace, self._wanted.folder
        if window is None or folder is None:
            return collectives
        if not self._has_one_clock:
            if self._rank == 0:
                warn(f"there is no trace of steps {window}: ranks are on several hosts, whose clocks differ")
            return collectives
        trace = Trace(self._rank)
        about: dict[str, object] = {"strategy": self._config.name}
        self._tracing = Tracing(trace, window, self._num_ranks, folder, about, Voice(say, warn))
        return TracedCollectives(collectives, trace) if isinstance(collectives, PlannedCollectives) else collectives

    def begin(self, announcer: Announcer, model: nn.Module) -> None:
        """Open the sinks, on rank 0, and start the clock. Raises InputError."""
        self._announcer, self._net = announcer, model
        if self._emulated is not None:
            self._pacing = self._emulated.pace(sum(p.numel() for p in model.parameters() if p.requires_grad))
        announcer.listen(self.hear)
        if self._rank == 0:
            self._file, sinks = open_wanted(self._wanted, self._settings(model))
            self._sinks.extend(sinks)
        if self._tracing is not None:
            self._layers = LayerSpans(leaves(model), self._tracing.trace)
        self.go_to(0)

    def go_to(self, step: int) -> None:
        """The next step is number `step`, counted from 0."""
        if self._file is not None:
            self._file.go_to(step)
        self._steps_told, self._num_steps, self._posted = step, 0, None
        self._times, self._losses = StepTimes(), Losses()
        if self._tracing is not None and self._layers is not None and not self._tracing.has_part:
            self._laps = self._tracing.laps(self._layers, step)
        self._step_begins()

    def batches(self, loader: Iterable[_Batch], batch_size: int) -> Iterator[_Batch]:
        """The loader's batches. If the loop learns from them, the wait for each counts as data."""
        try:
            self._data_begins()
            for batch in loader:
                self._laps.lap("data_s")
                self._is_open = True
                self._num_fetched += batch_size
                yield batch
                self._data_begins()
        finally:
            if not self._has_passed:
                self._laps.clear()
                self._is_open, self._num_fetched = False, 0

    def skip(self) -> None:
        """Leave out the time since the last call, in which the loop did not train."""
        self._laps.skip()
        self._was_away = True
        if self._pacing is not None:
            self._pacing.begin()
        if self._profile is not None:
            self._profile.skip()

    def paced(self, backward: BackwardPass) -> BackwardPass:
        """The last pass of a step, at the pace of the worker that is emulated, if one is."""
        return backward if self._pacing is None else self._pacing.paced(backward)

    def run_backward(self, rest: BackwardPass) -> None:
        """Run the pass, and note its time."""
        self._laps.lap("forward_s")
        if self._profile is None:
            rest.run()
        else:
            self._profile.backward(rest, self._num_fetched)
        self._laps.lap("backward_s")
        self._is_open = self._has_passed = True
        self.num_samples += self._num_fetched
        self._num_fetched = 0

    def passed(self, loss: torch.Tensor) -> None:
        """A backward pass and its exchange are over. The loss is read later, because that may wait for a GPU."""
        self._laps.lap("exchange_s")
        self._last_loss = loss.detach()
        self._losses.add(self._last_loss)

    def updating(self, apply: Callable[[], Any]) -> Callable[[], Any]:
        """`apply`, whose time counts as the update, as does that of the loop since its backward pass."""
        laps, trace = self._laps, None if self._tracing is None else self._tracing.trace
        laps.lap("update_s")
        if not self._reduces_gradients:
            self._steps_alone = True  # unless an exchange hears the others

        def timed() -> Any:
            laps.lap("exchange_s")
            start_s = time.monotonic()
            result = apply() if self._pacing is None else self._pacing.updating(apply)
            if self._waits and self._has_met and self._last_loss is not None and self._last_loss.is_cuda:
                torch.cuda.synchronize(self._last_loss.device)  # an exchange would wait for its work, and count it
            laps.lap("update_s")
            if trace is not None:
                trace.add(Span("update", "optimizer step", start_s, trace.now_s()))
            return result

        return timed

    def stepped(self, steps_done: int) -> None:
        """A step is over. Its figures leave with the next call of all ranks, if there was one since the last."""
        self._laps.lap("exchange_s")
        times = self._laps.times()
        if self._profile is not None and self._profile.stepped(times.update_s):
            self._end_profile()
        self._times = self._times.plus(times)
        self._num_steps += 1
        self._num_made += 1
        self._is_open = self._has_passed = False
        if self._posted is None and (self._has_met or self._is_due_alone()):
            self._post(steps_done)
        self._step_begins()

    def hear(self, rows: Rows) -> None:
        """Take what all ranks have told with a call; zeros of those that told nothing."""
        self._has_met, self._steps_alone = True, False
        told = np.flatnonzero(rows[:, 0])
        if not len(told):
            return
        steps, samples, losses, waits_s = rows[told].T
        weights = samples if samples.all() else steps
        num_steps = int(steps.max())
        steps_done, times = self._posted or (self._steps_told + num_steps, StepTimes())
        self._posted, self._steps_told = None, steps_done
        last, late_s = last_to_arrive(waits_s)
        last_rank = None if last is None else self._announcer.uneven.first_rank + int(told[last])
        if self._same.take(losses, len(rows)) and not self._rank:
            warn(
                "all ranks had the same loss in each of the first steps, so they read the same data; loop over "
                "replica.shard(loader), or divide the data by replica.rank"
            )
        loss = float(losses @ weights / weights.sum())
        seconds = sum(times.by_kind().values())
        self._tell(StepDone(steps_done, loss, int(samples.sum()), seconds, times, last_rank, late_s, num_steps))

    @property
    def loss(self) -> float:
        """The last loss, on a device the last that came; NaN before the first one, and if it is not one number."""
        last = self._last_loss
        return self._losses.last if last is None or last.device.type != "cpu" else number_of(last)

    def samples_per_s(self) -> float:
        """This rank's rate since the last calls; 0 if loaders do not tell their batch size."""
        return self._pace.take(self.num_samples)

    def profile(self, begun: Callable[[], LoopProfile]) -> None:
        """Measure the next steps for a profile, on rank 0."""
        if self._profile is not None:
            raise SamovarError("profile(): the steps of another profile are not over; call it later")
        if self._rank == 0 and self._emulated is not None:
            say("no profile: these steps take the time of an emulated cluster")
        elif self._rank == 0:
            self._profile = begun()

    def see_workers(self, step: int, rows: Callable[[], Mapping[int, Row]], *, is_finished: bool) -> None:
        """At a center: look at all ranks' progress from time to time, on rank 0."""
        now_s = time.monotonic()
        if self._rank or (now_s - self._workers_s < _WORKERS_EVERY_S and not is_finished):
            return
        self._workers, self._workers_s = dict(rows()), now_s
        if self._sinks:
            self._run.write(step, "workers", workers_values(self._workers.values()))

    def figures(self) -> Figures:
        """The figures so far; at a center, on rank 0, speeds are those of all ranks."""
        figures = self._run.figures()
        rates = {rank: row.progress.samples_per_s for rank, row in self._workers.items() if row.is_alive}
        if len(rates) < 2:
            return figures
        slowest = min(rates, key=lambda rank: rates[rank])
        return replace(figures, samples_per_second=sum(rates.values()), slow_rank=slowest)

    def end(self) -> None:
        """Training is over on this rank: no more is recorded. Its last figures leave with the next call."""
        self._end_profile()
        if self._tracing is not None:
            self._tracing.end()

    def finished(self, steps_done: int) -> None:
        """All ranks have ended: make the timeline, and say where the time went."""
        if self._tracing is not None:
            self._tracing.merge(steps_done)
        if self._pacing is not None:
            self._pacing.tell()
        verdict = self._run.verdict()
        if self._rank == 0 and verdict and (self._num_ranks > 1 or self._sinks):
            say(verdict)
        if self._rank == 0 and self.is_foreseen and self._num_made:
            rates = [row.progress.samples_per_s for row in self._workers.values() if row.is_alive]
            mean_step, batch_size = self._run.mean_step, self.num_samples / self._num_made
            compare(self._net, self._config, self._places, mean_step, batch_size, rates, self._others.share())

    def close(self) -> None:
        """Close the sinks, and remove what is left of a trace that was not finished."""
        self._end_profile()
        if self._tracing is not None:
            self._tracing.drop()
        self._end()

    def _end_profile(self) -> None:
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.close()

    def _step_begins(self) -> None:
        self._laps.start()
        if self._pacing is not None:
            self._pacing.begin()

    def _data_begins(self) -> None:
        if self._is_open:
            self._laps.lap("forward_s")
        else:
            self._laps.skip()

    def _is_due_alone(self) -> bool:
        """A process without others tells each step; on a device, where that waits, now and then."""
        if self._announcer.uneven.has_others:
            return False
        on_cpu = self._last_loss is None or self._last_loss.device.type == "cpu"
        return on_cpu or time.monotonic() - self._told_s >= _ALONE_EVERY_S

    def _post(self, steps_done: int) -> None:
        found = self._losses.take(self._num_steps)
        if found is None:
            return
        losses, num_steps_of_losses = found
        loss = sum(losses) / num_steps_of_losses if losses else math.nan
        samples = self.num_samples - self._num_samples_told
        times = self._times
        waited_s = times.exchange_s
        if self._was_away or self._steps_alone:  # no rank waits here, or the last one came from its evaluation
            waited_s, self._was_away = math.nan, self._was_away and self._steps_alone
        num_steps = self._num_steps
        self._posted, self._times = (steps_done, times), StepTimes()
        self._num_steps, self._num_samples_told = 0, self.num_samples
        self._has_met, self._told_s = False, time.monotonic()
        self._announcer.show_figures((num_steps, samples, loss, waited_s))

    def _tell(self, done: StepDone) -> None:
        sentence = self._run.step_done(done, self._lr())
        if sentence is not None and self._sinks:
            warn(sentence)
        if self._tracing is not None and done.steps_done >= self._tracing.window.last_step:
            self._tracing.begin_merge()

    def _settings(self, model: nn.Module) -> dict[str, object]:
        config = self._config
        settings = {setting.argument: config[setting.name] for setting in config.traits.settings}
        return {
            "model": type(model).__name__,
            "num_parameters": sum(parameter.numel() for parameter in model.parameters()),
            "world_size": self._num_ranks,
            "strategy": config.name,
            **{name: value for name, value in settings.items() if value is not None},
        }


class SameLosses:
    """Finds ranks that learn from the same data: their losses are equal to the bit, and change from step to step."""

    def __init__(self) -> None:
        self._seen: set[float] | None = set()

    def take(self, losses: npt.NDArray[np.float64], num_ranks: int) -> bool:
        """Whether all ranks had the same losses in all of the first steps, and these are enough to say so; once."""
        if (seen := self._seen) is None:
            return False
        is_same = 1 < num_ranks == len(losses) and bool((losses == losses[0]).all()) and losses[0] not in seen
        self._seen = seen | {losses[0]} if is_same and len(seen) < _SAME_LOSSES - 1 else None
        return is_same and self._seen is None


class FigureCalls:
    """Calls of a replica about its figures."""

    _figures: ReplicaFigures
    _model: nn.Module
    _parameters: Mapping[str, nn.Parameter]
    _optimizers: Optimizers

    def batches(self, loader: Iterable[_Batch], batch_size: int = 0) -> Iterator[_Batch]:
        """The batches of a loader that is not a shard. The wait for each shows in the figures, as `data`."""
        return self._figures.batches(loader, batch_size)

    def figures(self) -> Figures:
        """The figures of the run so far: speed, where the time went, and what to try. Waits for no other rank."""
        return self._figures.figures()

    def profile(self, path: str | Path, *, steps: int = 20, batch_size: int | None = None) -> None:
        """Measure the layers in the next steps, and write a profile for `samovar predict --profile`.

        Rank 0 measures `steps` steps after two, and writes the file; for others the call does nothing. If training ends
        before, the file has fewer steps. `batch_size` is how many samples a step of a rank has. It is needed if batches
        come neither from `shard` nor from `batches`. Waits for no other rank. Raises InputError.
        Cost: two readings of the clock a layer; on a GPU each waits for it.
        """
        made = (self._model, self._parameters, Path(path), steps, batch_size, self._optimizers.are_adaptive)
        self._figures.profile(lambda: LoopProfile(*made))


def leaves(model: nn.Module) -> Sequence[tuple[str, nn.Module]]:
    """The modules without inner ones, by name."""
    return [(name or type(model).__name__, m) for name, m in model.named_modules() if not any(m.children())]
