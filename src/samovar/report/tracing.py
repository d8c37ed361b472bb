"""A rank records some of its steps into a file, and rank 0 merges all files into one timeline."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from samovar.core.trace import Span, Trace, TraceWindow
from samovar.report.run_folder import RunFolder
from samovar.report.steps import Laps, StepTimes
from samovar.report.timeline import PartHeader, merge, moved_part, write_part


class Layers(Protocol):
    """Records the spans of layers from `attach` to `detach`; `passed` says that a backward pass is over."""

    def attach(self) -> None: ...
    def passed(self) -> None: ...
    def detach(self) -> None: ...


class TracedLaps(Laps):
    """Laps that begin with step `first_step`, counted from 0; the steps of `window` go into `trace`.

    `ended()` is called when the last of these is over, or they are cut short.
    """

    def __init__(
        self, trace: Trace, window: TraceWindow, first_step: int, layers: Layers, ended: Callable[[], None]
    ) -> None:
        super().__init__(trace.now_s)
        self._trace = trace
        self._window = window
        self._layers = layers
        self._ended = ended
        self._steps_begun = first_step
        self._started_s = self._forward_s = 0.0

    def start(self) -> None:
        self._steps_begun += 1
        if not self._trace.is_active and self._window.first_step <= self._steps_begun <= self._window.last_step:
            self._trace.is_active = True
            self._layers.attach()
        super().start()

    def skip(self) -> None:
        super().skip()
        self._forward_s = self._last_s
        if not self._seconds:
            self._started_s = self._last_s

    def lap(self, kind: str) -> None:
        before_s = self._last_s
        super().lap(kind)
        if not self._trace.is_active:
            return
        if kind == "data_s":
            self._add("data", "wait for data", before_s)
            self._forward_s = self._last_s
        elif kind == "backward_s":  # the forward pass was over when the last lap ended
            self._layers.passed()
            self._trace.add(Span("forward", "forward", self._forward_s, before_s))
            self._add("backward", "backward", before_s)
            self._forward_s = self._last_s

    def times(self) -> StepTimes:
        """Note that the step is over."""
        if self._trace.is_active:
            self._add("step", f"step {self._steps_begun}", self._started_s)
            if self._steps_begun == self._window.last_step:
                self.end()
        return super().times()

    def end(self) -> None:
        """End the recording."""
        if self._trace.is_active:
            self.detach()
            self._ended()

    def detach(self) -> None:
        """Record no more."""
        if self._trace.is_active:
            self._layers.detach()
            self._trace.is_active = False

    def _add(self, stream: str, name: str, start_s: float) -> None:
        self._trace.add(Span(stream, name, start_s, self._last_s))


@dataclass(frozen=True, slots=True)
class Voice:
    """How the user hears of something."""

    inform: Callable[[str], None]
    warn: Callable[[str], None]


class Tracing:
    """The trace of this rank, `trace.rank`, in the steps of `window`; one of `num_ranks` that share `folder`.

    Each rank writes its part when the last of these steps ends, or the training does. Rank 0 merges them in a thread
    once all ranks have passed that step, so no rank waits for it. `about` goes into the timeline.
    """

    def __init__(
        self, trace: Trace, window: TraceWindow, num_ranks: int, folder: RunFolder, about: dict[str, object], say: Voice
    ) -> None:
        self.trace = trace
        self.window = window
        self._folder = folder
        self._about = {"steps": str(window), "workers": num_ranks, **about}
        self._say = say
        self._parts = [folder.trace_part(rank) for rank in range(num_ranks)]
        self._laps: TracedLaps | None = None
        self.has_part = False  # whether this rank has recorded all that it will
        self._merging: threading.Thread | None = None

    def laps(self, layers: Layers, first_step: int) -> TracedLaps:
        """The laps of this rank from step `first_step`, counted from 0."""
        self._laps = TracedLaps(self.trace, self.window, first_step, layers, self._write)
        return self._laps

    def end(self) -> None:
        """Note that training is over, perhaps inside the window."""
        if self._laps is not None:
            self._laps.end()

    def own_part(self, offset_s_at: Callable[[float], float]) -> bytes:
        """This rank's part, with the offset of its clock to rank 0's; empty without one."""
        return moved_part(self._parts[self.trace.rank], offset_s_at) if self.has_part else b""

    def take_part(self, rank: int, content: bytes) -> None:
        """On rank 0: keep the part of a rank that may have another folder."""
        try:
            self._parts[rank].write_bytes(content)
        except OSError as error:
            self._say.warn(f"the trace of rank {rank} cannot be written: {error.strerror or error}")

    def begin_merge(self) -> None:
        """On rank 0, when all ranks have ended their traces: begin to merge their parts into a timeline."""
        if self.trace.rank == 0 and self.has_part and self._merging is None:
            self._merging = threading.Thread(target=self._merge, name="samovar-trace", daemon=True)
            self._merging.start()

    def merge(self, steps_done: int) -> None:
        """Do the same at the end of the training, after `steps_done` steps, and wait for the timeline."""
        self.begin_merge()
        if self._merging is not None:
            self._merging.join()
        elif self.trace.rank == 0:
            self._say.warn(f"trace of steps {self.window}: training ended after step {steps_done}; there is no trace")

    def drop(self) -> None:
        """End without a trace, if there is none yet: remove this rank's part, and hooks."""
        if self._laps is not None:
            self._laps.detach()
        if self._merging is not None:
            self._merging.join()
        elif self.has_part:
            _remove([self._parts[self.trace.rank]])

    def _merge(self) -> None:
        try:
            self._tell_of(merge(self._parts, self._folder.trace, self._about))
        except OSError as error:
            self._say.warn(f"{self._folder.trace} cannot be written: {error.strerror or error}; no trace")
        finally:
            _remove(self._parts)

    def _tell_of(self, headers: Sequence[PartHeader]) -> None:
        self._say.inform(f"trace of steps {self.window}: {self._folder.trace} (open it at ui.perfetto.dev)")
        left_out = [f"{header.num_left_out:,} of rank {header.rank}" for header in headers if header.num_left_out]
        if left_out:
            self._say.warn(f"the trace is full and lacks spans ({', '.join(left_out)}); trace fewer steps")

    def _write(self) -> None:
        spans = self.trace.take()
        first_s = min((span.start_s for span in spans), default=None)
        header = PartHeader(self.trace.rank, self.trace.clock_offset_s, self.trace.num_left_out, first_s)
        self.has_part = True
        try:
            write_part(self._parts[self.trace.rank], header, spans)
        except OSError as error:
            self._say.warn(f"the trace of rank {self.trace.rank} cannot be written: {error.strerror or error}")


def _remove(parts: list[Path]) -> None:
    for part in parts:
        with suppress(OSError):
            part.unlink(missing_ok=True)
