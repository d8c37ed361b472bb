"""The log of `samovar caffe`: Caffe's own lines, as glog writes them, for the programs that read such logs.

I1121 00:12:34.123456  4711 solver.cpp:239] Iteration 20 (12.3 iter/s, 1.6s/20 iters), loss = 0.31
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TextIO

from samovar.core.clock import local_now
from samovar.report.console import Screen
from samovar.report.records import (
    Finished,
    Iterated,
    LastLoss,
    Notice,
    Record,
    SnapshotWritten,
    Started,
    Tested,
    TestedBatch,
    Timed,
    Valued,
    ValueLine,
)

_INDEX = re.compile(r"\[\d+\]$")
_AUTOMATIC = "(automatic)"  # the top of a loss without a top: Caffe does not count it as an output
_MIN_NAME_WIDTH = 10
_VALUE_PLACES = {
    "top": "net.cpp:593",
    "parameter": "net.cpp:605",
    "bottom": "net.cpp:621",
    "gradient": "net.cpp:632",
    "all": "net.cpp:721",
}


class CaffeLog:
    """Shows records as Caffe's lines on `errors`; places in its source files as in BVLC Caffe 1.0.

    `command` is the sub-command: `test` shows its outputs in a different form than `train`.
    """

    def __init__(self, errors: TextIO, command: str, now: Callable[[], datetime] = local_now) -> None:
        self._screen = Screen(errors, terminal=False)
        self._command = command
        self._now = now
        self._held: list[ValueLine] = []  # of a test of which nothing else was told yet

    def entry(self, place: str, text: str, level: str = "I") -> None:
        """One entry; further lines of `text` follow without a head, as glog has it."""
        stamp = self._now().strftime("%m%d %H:%M:%S.%f")
        self._screen.line(f"{level}{stamp} {os.getpid():5d} {place}] {text}")

    def show(self, record: Record) -> None:
        """Show one record."""
        match record:
            case Started():
                self._start(record)
            case Iterated():
                self._iterated(record)
            case LastLoss():
                self.entry("solver.cpp:327", f"Iteration {record.step}, loss = {_number(record.loss)}")
            case SnapshotWritten():
                self._snapshot(record.path)
            case Notice():
                self.entry("samovar", record.text, "W" if record.level == "warning" else "I")
            case Finished():
                self._finish(record.result.stopped_by)
            case _:
                self._show_measured(record)

    def _show_measured(self, record: Record) -> None:
        match record:
            case Tested():
                self._tested(record)
            case TestedBatch():
                for name, value in _shown(record.outputs).items():
                    self.entry("caffe.cpp:304", f"Batch {record.batch}, {_blob(name)} = {_number(value)}")
            case Timed():
                self._timed(record)
            case Valued():
                if record.is_test and self._command == "train":
                    self._held += record.lines
                else:
                    self._values(record.lines)

    def _values(self, lines: Sequence[ValueLine]) -> None:
        for line in lines:
            self.entry(_VALUE_PLACES.get(line.kind, "net.cpp"), line.text, "E" if line.kind == "all" else "I")

    def _start(self, started: Started) -> None:
        self.entry("solver.cpp:57", "Solver scaffolding done.")
        if started.workers > 1:
            self.entry("samovar", f"{started.workers} workers, strategy {started.strategy}")
        self.entry("caffe.cpp:239", "Starting Optimization")
        self.entry("solver.cpp:289", f"Solving {started.net_name}")
        self.entry("solver.cpp:290", f"Learning Rate Policy: {started.lr_policy}")

    def _iterated(self, told: Iterated) -> None:
        per_second = told.num_iterations / told.seconds if told.seconds > 0 else 0.0
        pace = f"{_number(per_second)} iter/s, {_number(told.seconds)}s/{told.display} iters"
        self.entry("solver.cpp:239", f"Iteration {told.iteration} ({pace}), loss = {_number(told.loss)}")
        self._outputs("solver.cpp:258", "Train", told.outputs, told.loss_weights)
        self.entry("sgd_solver.cpp:112", f"Iteration {told.iteration}, lr = {_number(told.learning_rate)}")

    def _tested(self, tested: Tested) -> None:
        if self._command == "test":
            self.entry("caffe.cpp:309", f"Loss: {_number(tested.loss or 0.0)}")
            for name, value in _shown(tested.outputs).items():
                self.entry("caffe.cpp:321", _output(name, value, tested.loss_weights))
            return
        self.entry("solver.cpp:347", f"Iteration {tested.step}, Testing net (#{tested.net})")
        self._values(self._held)
        self._held = []
        if tested.loss is not None:
            self.entry("solver.cpp:399", f"Test loss: {_number(tested.loss)}")
        self._outputs("solver.cpp:414", "Test", tested.outputs, tested.loss_weights)

    def _outputs(self, place: str, what: str, outputs: Mapping[str, float], loss_weights: Mapping[str, float]) -> None:
        for index, (name, value) in enumerate(_shown(outputs).items()):
            self.entry(place, f"    {what} net output #{index}: {_output(name, value, loss_weights)}")

    def _snapshot(self, model: str) -> None:
        form = "HDF5 file" if model.endswith(".h5") else "binary proto file"
        stem, dot, suffix = model.rpartition(".caffemodel")
        self.entry("solver.cpp:464", f"Snapshotting to {form} {model}")
        state = f"{stem}.solverstate{suffix}" if dot else model
        self.entry("sgd_solver.cpp:284", f"Snapshotting solver state to {form} {state}")

    def _timed(self, timed: Timed) -> None:
        def say(text: str) -> None:
            self.entry("caffe.cpp:418", text)

        say("Performing Forward")
        if timed.initial_loss is not None:
            say(f"Initial loss: {_number(timed.initial_loss)}")
        say("Performing Backward")
        say("*** Benchmark begins ***")
        say(f"Testing for {timed.iterations} iterations.")
        for index, milliseconds in enumerate(timed.iteration_ms, 1):
            say(f"Iteration: {index} forward-backward time: {_number(milliseconds)} ms.")
        say("Average time per layer: ")
        for layer in timed.layers:
            say(f"{layer.name:>{_MIN_NAME_WIDTH}}\tforward: {_number(layer.forward_ms)} ms.")
            say(f"{layer.name:>{_MIN_NAME_WIDTH}}\tbackward: {_number(layer.backward_ms)} ms.")
        total = sum(timed.iteration_ms)
        say(f"Average Forward pass: {_number(timed.forward_ms)} ms.")
        say(f"Average Backward pass: {_number(timed.backward_ms)} ms.")
        say(f"Average Forward-Backward: {_number(total / timed.iterations)} ms.")
        say(f"Total Time: {_number(total)} ms.")
        say("*** Benchmark ends ***")

    def _finish(self, stopped_by: str | None) -> None:
        if stopped_by is None:
            self.entry("solver.cpp:332", "Optimization Done.")
        else:
            self.entry("solver.cpp:319", "Optimization stopped early.")
        self.entry("caffe.cpp:250", "Optimization Done.")


def _shown(outputs: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in outputs.items() if not name.startswith(_AUTOMATIC)}


def _output(name: str, value: float, loss_weights: Mapping[str, float]) -> str:
    text = f"{_blob(name)} = {_number(value)}"
    if weight := loss_weights.get(_blob(name)):
        text += f" (* {_number(weight)} = {_number(weight * value)} loss)"
    return text


def _blob(name: str) -> str:
    """Caffe writes each value of an output under the same name."""
    return _INDEX.sub("", name)


def _number(value: float) -> str:
    """As a C++ stream writes it: six digits."""
    return f"{value:g}"
