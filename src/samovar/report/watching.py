"""A run while it trains: a view for the terminal, and the page of its report on an address of this host."""

import contextlib
import math
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import rich.console
import rich.live
import rich.text

from samovar.core import units
from samovar.core.errors import InputError, SamovarError
from samovar.core.host import says_loopback
from samovar.report.charts import count, is_drawable
from samovar.report.comparison import Comparison, who_trains
from samovar.report.history import ENDED, OPEN, UNTOLD, History, binned
from samovar.report.page import page
from samovar.report.tables import printable, printer, show_lines
from samovar.report.wording import duration, number, rate

_EVERY_S: Final = 0.5
_GOING_ON: Final = (OPEN, UNTOLD)
_BLOCKS: Final = "▁▂▃▄▅▆▇█"
_BAR, _NAME, _VALUE, _SPARKS = 40, 11, 10, 40


def watch(run: History, stopped: threading.Event) -> None:
    """Show the run in the terminal until it ends or `stopped` is set; elsewhere, a line whenever a step is done."""
    console = printer()
    if not console.is_terminal:
        said = ""
        for _ in _looks(run, stopped):
            if (sentence := Comparison.of([run], None).verdict()) != said:
                show_lines(console, said := sentence)
            if console.quiet:
                return
        return
    with rich.live.Live(console=console, auto_refresh=False) as live:
        for _ in _looks(run, stopped):
            live.update(view(run, time.time()), refresh=True)


def _looks(run: History, stopped: threading.Event) -> Iterator[None]:
    """After each look at the run; the last one is that at its end."""
    while True:
        run.look()
        yield
        if run.state not in _GOING_ON or stopped.wait(_EVERY_S):
            return


def view(run: History, now_s: float) -> rich.console.Group:
    """The run in ten lines: progress, loss, accuracy, speed, the slow rank and the share of waiting."""
    lines = [
        rich.text.Text.assemble(
            (printable(run.net), "bold"), printable(f" · {who_trains(run)} · {_state(run, now_s)}")
        ),
        _progress(run),
        *(_row(name, value, more) for name, value, more in _figures(run)),
    ]
    return rich.console.Group(*lines)


def _state(run: History, now_s: float) -> str:
    if run.state == ENDED:
        return f"ended after {units.duration(run.seconds)}"
    if run.state not in _GOING_ON:
        return run.state_in_words
    with contextlib.suppress(OSError):
        return f"last line {units.seconds(max(0.0, now_s - run.files.metrics.stat().st_mtime))} ago"
    return "no line yet"


def _progress(run: History) -> rich.text.Text:
    step, total = (round(run.steps.step[-1]) if run.steps.step else 0), run.told.total_steps
    if not total:
        return rich.text.Text(f"step {step:,}")
    done = round(_BAR * min(1.0, step / total))
    bar = (("━" * done, "green"), ("━" * (_BAR - done), "bright_black"))
    return rich.text.Text.assemble(*bar, f"  step {step:,}/{total:,}{_left(run, step, total)}")


def _left(run: History, step: int, total: int) -> str:
    steps, seconds = run.steps.step, run.steps.seconds
    per_step = (seconds[-1] - seconds[0]) / (steps[-1] - steps[0]) if len(steps) > 1 else 0.0
    left_s = max(0, total - step) * per_step
    return f" · {duration(left_s)} left" if run.state in _GOING_ON and per_step and math.isfinite(left_s) else ""


def _figures(run: History) -> Iterator[tuple[str, str, str]]:
    steps = run.steps
    if not steps.step:
        return
    yield "loss", number(steps.loss[-1]), _sparks([value for _, value in binned(steps.step, steps.loss, _SPARKS)])
    if run.accuracies:
        test, accuracy = run.accuracies[-1]
        yield "accuracy", f"{accuracy:.2%}", f"step {test.step:,}; the best is {run.best_accuracy or accuracy:.2%}"
    if steps.samples[-1]:
        size = max(1, len(steps.step) // _SPARKS)
        rates = [steps.rate(last - size, last) for last in range(size, len(steps.step), size)]
        of = "of worker 0" if run.is_of_worker_0 else ""
        yield "samples/s", rate(run.recent_samples_per_second), f"{_sparks(rates, from_zero=True)} {of}".rstrip()
        yield "samples", count(steps.samples[-1]), of
    if total_s := sum(run.step_s.values()):
        shares = ", ".join(f"{kind} {seconds / total_s:.0%}" for kind, seconds in run.step_s.items())
        yield "waiting", f"{run.step_s['exchange'] / total_s:.0%}", f"of a step of {units.seconds(total_s)}: {shares}"
        rank, share = run.spent.slowest
        if rank is not None:
            yield "slow rank", f"{rank}", f"the others wait {share:.0%} of the time for it"
        yield "bound", run.spent.bound.partition(",")[0], run.told.advice


def _row(name: str, value: str, more: str) -> rich.text.Text:
    shown = (f"{name:<{_NAME}}", "dim"), (f"{printable(value):>{_VALUE}}", "bold"), f"  {printable(more)}"
    return rich.text.Text.assemble(*shown)


def _sparks(values: Sequence[float], *, from_zero: bool = False) -> str:
    known = [value for value in values if is_drawable(value)]
    if len(known) < 2:
        return ""
    low, high = 0.0 if from_zero else min(known), max(known)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in known)


@contextlib.contextmanager
def served(run: History, address: str, port: int) -> Iterator[str]:
    """The run's page at an address of this host meanwhile; gives its URL. Raises InputError if it cannot listen.

    On loopback only requests that name this host or the address are answered: no page of another site can read the run.
    """
    lock, is_ipv6 = threading.Lock(), ":" in address
    written = f"[{address}]" if is_ipv6 else address

    def shown() -> str:
        with lock:
            return page(Comparison.of([run.look()], None), is_live=True)

    _PageServer.address_family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    try:
        server = _PageServer((address, port), _handler(shown, address))
    except OSError as error:
        raise InputError(f"--listen {written}:{port}: {error.strerror}; give a free port of this host") from error
    server.daemon_threads = True  # a connection on which nothing comes must not hold up the end
    with server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="samovar-page")
        thread.start()
        try:
            yield f"http://{written}:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


class _PageServer(ThreadingHTTPServer):
    """Browsers may leave at any time, which is nothing to tell."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _handler(shown: Callable[[], str], address: str) -> type[BaseHTTPRequestHandler]:
    class PageHandler(BaseHTTPRequestHandler):
        """Answers with the page, and nothing else."""

        server: ThreadingHTTPServer
        timeout = 10.0
        server_version, sys_version = "samovar", ""

        def do_GET(self) -> None:
            host = re.sub(r":\d+$", "", self.headers.get("Host", "")).strip("[]")  # at port 80 without one
            only_here = says_loopback(self.server.socket.getsockname()[0])  # a name or 127.1 leads there, too
            if only_here and not says_loopback(host) and host.lower() != address.lower():
                self._answer(403, "text/plain", "this page is for this host only")
            elif self.path != "/":
                self._answer(404, "text/plain", "there is only one page here: /")
            else:
                try:
                    self._answer(200, "text/html", shown())
                except SamovarError as error:
                    self._answer(500, "text/plain", str(error))

        def _answer(self, code: int, kind: str, text: str) -> None:
            content = text.encode("utf-8", "backslashreplace")  # a path may be no UTF-8
            self.send_response(code)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    return PageHandler
