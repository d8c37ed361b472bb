"""`samovar report` and `samovar watch`: what runs came to, on a page, and a run while it trains."""

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer

from samovar.cli.command import OPTIONS
from samovar.core import units
from samovar.core.errors import InputError
from samovar.core.files import opened
from samovar.report.comparison import Comparison, read_foreseen
from samovar.report.history import History
from samovar.report.page import MARK, page
from samovar.report.run_folder import RunFolder, write_atomic
from samovar.report.tables import printer, show_lines
from samovar.report.watching import served, watch
from samovar.transports.tcp_listen import parse_address

_LOOPBACK = "127.0.0.1:0"


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders. Several are compared.")],
    prediction: Annotated[
        Path | None, OPTIONS("FILE", "Also show a prediction: the output of `samovar predict --json`.")
    ] = None,
    out: Annotated[
        Path | None, OPTIONS("FILE", "The page. Default: report.html, in the folder of a single run.")
    ] = None,
) -> None:
    """Write a page about runs: verdict, curves, speed-up, step, timeline, staleness and bytes.

    It is one HTML file that needs no network.
    """
    if len({run.resolve() for run in runs}) < len(runs):
        raise InputError("a run is given twice; give each run once")
    foreseen = None if prediction is None else read_foreseen(prediction)
    content = page(Comparison.of([History(run).look() for run in runs], foreseen)).encode("utf-8", "backslashreplace")
    path = out or (RunFolder(runs[0]).report if len(runs) == 1 else Path("report.html"))
    _require_own(path)
    write_atomic(path, content)
    show_lines(printer(), f"report: {path} ({units.size(len(content))})")


def _require_own(path: Path) -> None:
    """An older report is replaced, and nothing else is."""
    try:
        with opened(path) as file:
            is_own = file.read(len(MARK)) == MARK.encode()
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"--out {path}: {error.strerror}; give another file") from error
    if not is_own:
        raise InputError(f"--out {path} exists, and is not a report; give another file")


def watch_run(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, whether it trains or has ended.")],
    web: Annotated[bool, OPTIONS("", "Serve its page to a browser of this host, until Ctrl-C.", "--web")] = False,
    listen_at: Annotated[
        str, OPTIONS("ADDRESS:PORT", "With --web: where. Port 0 is any free one.", "--listen")
    ] = _LOOPBACK,
) -> None:
    """Show a run as it trains: loss, accuracy, samples per second, the slow rank, and the share of waiting.

    It ends with the run or with Ctrl-C, and never changes the run.
    """
    if listen_at != _LOOPBACK and not web:
        raise InputError("--listen is for --web: give both, or none")
    history, stopped = History(run), threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # In a thread: the signal may come while this one has the event's own lock, for which `set` would wait for ever.
        signal.signal(number, lambda _number, _frame: threading.Thread(target=stopped.set).start())
    if not web:
        watch(history, stopped)
        return
    if (place := parse_address(listen_at)) is None:
        raise InputError(f"--listen {listen_at}: give an address of this host and a port, such as 127.0.0.1:8080")
    with served(history, *place) as url:
        print(f"{run} is shown at {url}; Ctrl-C ends it", flush=True)
        stopped.wait()
    typer.echo("the page has ended; the run was not touched")
