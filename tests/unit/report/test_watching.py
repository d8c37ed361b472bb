"""A run while it trains: its lines for the terminal, and its page on this host."""

import io
import re
import shutil
import socket
import struct
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import rich.console

from samovar.core.errors import InputError
from samovar.report.console import LogFile
from samovar.report.history import History
from samovar.report.metrics import MetricsWriter
from samovar.report.run_folder import RunFolder
from samovar.report.watching import served, view, watch
from tests.unit.report.run_folders import run_folder, step_lines

LOOPBACK = "127.0.0.1"


def shown(run: History, now_s: float = 0.0) -> str:
    text = io.StringIO()
    rich.console.Console(file=text, width=120, highlight=False).print(view(run, now_s))
    return text.getvalue()


def test_the_view_of_a_run_that_trains(tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 150)
    files = RunFolder(tmp_path)
    log = LogFile(files.log)
    log.write("step 140/300 · loss 0.01")
    text = shown(History(tmp_path).look(), files.metrics.stat().st_mtime + 2)
    for said in (
        "last line 2 s ago",
        "step 150/300 · 0:02 left",
        "0.0153",
        "90.00%  step 100",
        "12,800",
        "rank",
        "30%  of",
    ):
        assert said in text, text
    log.close()
    assert "ended by force" in shown(History(tmp_path).look())
    assert "slow rank           1  the others wait 20% of the time for it" in text


def test_the_view_of_a_loop_that_counts_no_samples(tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 50, batch=0)
    assert "samples" not in shown(History(tmp_path).look())


def test_the_view_of_a_loop_at_a_center_says_whose_samples_it_counts(tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 20)
    with MetricsWriter(RunFolder(tmp_path).metrics, 20) as metrics:
        metrics.write(20, "workers", {"steps": [20, 19], "samples_per_second": [3.0, 1.5], "is_gone": [False, False]})
    text = shown(History(tmp_path).look())
    assert re.search(r"samples/s +4.5  ▁?[▂-█]+ of worker 0\n", text)
    assert re.search(r"samples +2.56k  of worker 0\n", text)


def test_losses_at_the_edge_of_floats_have_a_view(tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 3)
    with RunFolder(tmp_path).metrics.open("a") as file:
        file.writelines(
            f'{{"step": {n}, "kind": "train", "loss": {loss}}}\n' for n, loss in ((4, -1.7e308), (5, 1.7e308))
        )
    assert "1.7e+308" in shown(History(tmp_path).look())


def test_a_net_whose_name_would_steer_the_terminal(tmp_path: Path) -> None:
    files = RunFolder(run_folder(tmp_path / "run", "sync\x1b[2J", net="a\x1b[31mb"))
    files.log.write_text("x where the time went: data 5%: compute-bound; see\x1b]0;me\x07\n")
    text = shown(History(files.path).look())
    for said in ("a\\x1b[31mb", "with sync\\x1b[2J", "see\\x1b]0;me\\x07"):
        assert said in text
    assert "\x1b" not in text
    files.result.unlink()
    files.config.write_text('{"workers": 2, "strategy": {"name": "sync\\ud800"}}')
    assert "with sync\\ud800 " in shown(History(files.path).look())


def test_the_time_left_is_that_of_the_steps_of_this_process(tmp_path: Path) -> None:
    """A run that was resumed in a new folder begins at a later step."""
    files = RunFolder(tmp_path)
    with MetricsWriter(files.metrics) as metrics:
        for step in range(901, 951):
            metrics.write(step, "train", {"loss": 1.0, "samples": 1, "seconds": 2.0})
    with closing(LogFile(files.log)) as log:
        log.write("step 950/1000 · loss 0.01")
        assert "step 950/1,000 · 1:40 left" in shown(History(tmp_path).look())
        log.write("step 900/900 · loss 0.01")
        assert "step 950/900 · 0:00 left" in shown(History(tmp_path).look())


def test_a_run_that_has_ended_is_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch(History(run_folder(tmp_path / "run")), threading.Event())
    assert capsys.readouterr().out == (
        "LeNet: 2 workers with sync reached 96.67% accuracy in 3 s, at 10,944 samples/s\n"
    )


def test_a_watch_can_be_stopped(tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 2)
    stopped = threading.Event()
    stopped.set()
    watch(History(tmp_path), stopped)


def test_a_watch_of_a_folder_that_is_deleted_ends(tmp_path: Path) -> None:
    """As that of a run whose input was refused after all."""
    (folder := tmp_path / "run").mkdir()
    step_lines(folder, 1, 2)
    run, stopped = History(folder), threading.Event()
    shutil.rmtree(folder)
    stopped.set()
    with pytest.raises(InputError, match=r"is gone: was it moved, or its run refused\? Give a run's folder"):
        watch(run, stopped)


def answer(url: str, host: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, headers={} if host is None else {"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=30) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_the_page_is_served_and_follows_the_run(tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 20)
    with served(History(tmp_path), LOOPBACK, 0) as url:
        code, text = answer(url)
        assert (code, "at step 20," in text) == (200, True)
        step_lines(tmp_path, 21, 30)
        assert "at step 30," in answer(url)[1]
        assert answer(f"{url}../etc/passwd") == (404, "there is only one page here: /")
        assert [answer(url, host)[0] for host in ("localhost", "[::1]:80", "[::1]", "127.0.0.1")] == [200] * 4
        assert answer(url, "a.name.of.another.site")[0] == 403
        assert answer(url, "a.name.of.another.site:80") == (403, "this page is for this host only")
        RunFolder(tmp_path).metrics.write_text("no line\n")
        code, text = answer(url)
        assert (code, "is not JSON" in text) == (500, True)


@pytest.mark.parametrize("address", ["127.1", "2130706433"])
def test_an_address_that_leads_to_loopback_is_for_this_host_only(tmp_path: Path, address: str) -> None:
    step_lines(tmp_path, 1, 2)
    with served(History(tmp_path), address, 0) as url:
        here = url.replace(address, LOOPBACK)
        assert answer(here, "a.name.of.another.site") == (403, "this page is for this host only")
        assert [answer(here, host)[0] for host in (None, f"{address}:80")] == [200, 200]


def test_a_browser_that_leaves_before_its_answer_leaves_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step_lines(tmp_path, 1, 200)
    begun, left = threading.Event(), threading.Event()

    class SlowlyRead(History):
        def look(self) -> History:
            begun.set()
            assert left.wait(30.0)
            return super().look()

    with served(SlowlyRead(tmp_path), LOOPBACK, 0) as url:
        browser = socket.create_connection((LOOPBACK, int(url.rpartition(":")[2].rstrip("/"))))
        browser.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it ends with a reset
        browser.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert begun.wait(30.0)
        browser.close()
        left.set()
        assert answer(url)[0] == 200
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("said", [b"", b"GET / HT"])
def test_a_connection_on_which_nothing_comes_does_not_hold_up_the_end(tmp_path: Path, said: bytes) -> None:
    step_lines(tmp_path, 1, 2)
    with ExitStack() as stack:
        with served(History(tmp_path), LOOPBACK, 0) as url:
            place = (LOOPBACK, int(url.rpartition(":")[2].rstrip("/")))
            silent = stack.enter_context(socket.create_connection(place))
            silent.sendall(said)
            assert answer(url)[0] == 200  # so the one before has been taken in
        silent.settimeout(0.0)
        with pytest.raises(BlockingIOError):  # it is still open: nobody waited for its end
            silent.recv(1)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
def test_the_page_at_an_ipv6_address(tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 2)
    with served(History(tmp_path), "::1", 0) as url:
        assert url.startswith("http://[::1]:")
        assert answer(url)[0] == 200


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    step_lines(tmp_path, 1, 2)
    with served(History(tmp_path), LOOPBACK, 0) as url:
        port = int(url.rpartition(":")[2].rstrip("/"))
        said = pytest.raises(InputError, match=f"--listen 127.0.0.1:{port}: .*; give a free port of this host")
        with said, served(History(tmp_path), LOOPBACK, port):
            raise AssertionError("it is taken")
