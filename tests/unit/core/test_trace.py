"""The recorder of spans, and which steps it is asked for."""

from itertools import count

import pytest

from samovar.core.errors import InputError
from samovar.core.trace import Span, Trace, TraceWindow


def span(number: int) -> Span:
    return Span("step", f"step {number}", number, number + 1)


def test_spans_are_taken_only_while_it_is_active() -> None:
    trace = Trace(0)
    trace.add(span(1))
    trace.is_active = True
    trace.add(span(2))
    trace.is_active = False
    trace.add(span(3))
    assert trace.take() == [span(2)]
    assert trace.num_left_out == 0


def test_a_full_trace_counts_what_it_leaves_out() -> None:
    trace = Trace(0, capacity=3)
    trace.is_active = True
    for number in range(10):
        trace.add(span(number))
    assert trace.num_left_out == 7
    assert trace.take() == [span(0), span(1), span(2)]
    assert trace.take() == []


def test_its_clock_can_be_given() -> None:
    ticks = count()
    trace = Trace(0, clock_s=lambda: float(next(ticks)))
    assert [trace.now_s(), trace.now_s()] == [0.0, 1.0]
    assert trace.clock_offset_s == 0.0


def test_a_window_has_its_first_and_last_step() -> None:
    assert TraceWindow.parse("steps=20-30") == TraceWindow(20, 30)
    assert str(TraceWindow.parse("steps=7-7")) == "7-7"


@pytest.mark.parametrize("written", ["", "20-30", "steps=20", "steps=3-2", "steps=0-3", "steps=-1-3", "steps=1-2,5-6"])
def test_anything_else_is_refused_with_an_example(written: str) -> None:
    with pytest.raises(InputError, match=r"--trace '.*': .* steps=20-30"):
        TraceWindow.parse(written)
