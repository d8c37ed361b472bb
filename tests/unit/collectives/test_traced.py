"""Exchanges in a trace: real ones between ranks as threads."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from samovar.collectives.engine import PlannedCollectives, TracedCollectives, float32_region
from samovar.core.clock import Deadline
from samovar.core.trace import Span, Trace
from samovar.transports.shm import ShmTransport

MakeTransports = Callable[[int], list[ShmTransport]]
TIMEOUT_S = 30.0
WORLD_SIZE = 3
ROOT = 1


def exchange(transport: ShmTransport) -> tuple[np.ndarray, list[Span]]:
    """An all-reduce outside the trace and one in it, one in the background, then to a root and back."""
    trace = Trace(transport.group.rank)
    collectives = TracedCollectives(PlannedCollectives(transport, lambda _num_bytes: "tree"), trace)
    region = float32_region(collectives, "values", 8)
    region.array[:] = 1.0
    whole = collectives.all_reduce("whole", region)
    halves = [collectives.all_reduce(f"half {index}", region.part(4 * index, 4 * index + 4)) for index in range(2)]
    reduce, broadcast = collectives.reduce_to("up", region, ROOT), collectives.broadcast_from("down", region, ROOT)
    whole.run(Deadline.after(TIMEOUT_S))
    trace.is_active = True
    whole.run(Deadline.after(TIMEOUT_S))
    for half in halves:
        half.start()
    for runner in (*halves, reduce, broadcast):
        (runner.finish if runner in halves else runner.run)(Deadline.after(TIMEOUT_S))
    return region.array.copy(), trace.take()


def test_each_run_has_its_spans_and_says_who_gives_and_who_takes(make_transports: MakeTransports) -> None:
    with ThreadPoolExecutor(WORLD_SIZE) as pool:
        found = list(pool.map(exchange, make_transports(WORLD_SIZE)))
    for rank, (values, spans) in enumerate(found):
        assert (values == WORLD_SIZE**4).all()
        by_name = {(span.stream, span.name): span for span in spans}
        assert len(by_name) == len(spans) == 9
        whole = by_name["exchange", "whole"]
        assert (whole.sends, whole.takes) == ("whole #2", "whole #2"), "the run outside the trace counts"
        for half in ("half 0", "half 1"):
            post, wait = (by_name["exchange", f"{what} {half}"] for what in ("post", "wait"))
            flight = by_name["in flight", half]
            assert (post.sends, post.takes, flight.sends, flight.takes) == (f"{half} #1", None, None, f"{half} #1")
            assert post.start_s == flight.start_s < flight.stop_s <= wait.stop_s
            assert wait.sends is wait.takes is None
        up, down = by_name["exchange", "up"], by_name["exchange", "down"]
        is_root = rank == ROOT
        assert (up.sends, up.takes) == ((None, "up #1") if is_root else ("up #1", None))
        assert (down.sends, down.takes) == (("down #1", None) if is_root else (None, "down #1"))
