"""`samovar.train` in a user's own program: the command's bits, errors and signals, and nothing left behind."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import samovar
from samovar.core.errors import RankFailed
from samovar.report.result import read_result
from tests.multiproc.command import TIMEOUT_S, last_step, result_of, run, succeed, wait_until
from tests.multiproc.nets import write_net, write_solver

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
ENDLESS = 10_000_000


@pytest.fixture
def solver(tmp_path: Path, digits: Path) -> Path:
    return write_solver(write_net(tmp_path, digits), 6)


@pytest.fixture
def endless(tmp_path: Path, digits: Path) -> Path:
    """A solver that would train for hours."""
    return write_solver(write_net(tmp_path, digits), ENDLESS)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in HANDLED]


def told(output: str) -> list[str]:
    """The output of a run that is the same each time: without paths and times."""
    lines = [line for line in output.splitlines() if line.startswith(("narrow", "2 workers", "step", "test"))]
    return [re.sub(r"[\d,.]+ samples/s.*| · \d[\d.:]* s\b.*", "", line) for line in lines]


def test_it_trains_as_the_command_does_and_shows_the_same(
    tmp_path: Path, solver: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = handlers()
    result = samovar.train(
        solver,
        workers=2,
        threads_per_worker=1,
        strategy="sync-easgd",
        sync_period_steps=2,
        moving_rate=0.2,
        seed=7,
        shuffle=True,
        out=tmp_path / "function",
    )
    shown = capfd.readouterr().out
    assert handlers() == before
    flags: tuple[object, ...] = (
        "--workers",
        2,
        "--threads-per-worker",
        1,
        "--strategy",
        "sync-easgd",
        "--sync-period",
        2,
    )
    flags = (*flags, "--moving-rate", 0.2, "--seed", 7, "--shuffle", "--out", "command")
    ended = succeed("train", "--solver", solver, *flags, folder=tmp_path)
    assert result.weights_sha256 == result_of(tmp_path / "command")["weights_sha256"]
    assert (result.steps, result.stopped_by, result.run_folder) == (6, None, tmp_path / "function")
    assert told(shown) == told(ended.output) != []
    assert read_result(tmp_path / "function/result.json").weights_sha256 == result.weights_sha256
    assert "run_folder" not in result_of(tmp_path / "function")


def test_quiet_it_writes_the_log_alone(tmp_path: Path, solver: Path, capfd: pytest.CaptureFixture[str]) -> None:
    # The first rank has threads when it forks the other.
    several: dict[str, Any] = {"workers": 2, "threads_per_worker": 2, "oversubscribe": True}
    result = samovar.train(solver, **several, iterations=2, out=tmp_path / "out", quiet=True)
    assert capfd.readouterr() == ("", "")
    assert result.steps == 2
    assert [path.read_text() for path in (tmp_path / "out").glob("rank*.log")] == ["", ""]
    assert "step 2/2" in (tmp_path / "out/samovar.log").read_text()


def when_trained(out: Path, action: Callable[[], object]) -> threading.Thread:
    """A thread that acts after step 3 of the run in `out`."""

    def act() -> None:
        wait_until(lambda: last_step(out) >= 3, "step 3")
        action()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_signal_stops_it_with_a_snapshot_and_a_result(
    tmp_path: Path, endless: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, before = tmp_path / "out", handlers()
    thread = when_trained(out, lambda: os.kill(os.getpid(), number))
    result = samovar.train(endless, threads_per_worker=1, out=out, quiet=True)
    thread.join()
    assert result.stopped_by == number.name
    assert [path.name for path in out.glob("snapshots/step_*")] == [f"step_{result.steps:08}"]
    assert handlers() == before
    for stream in ("stdout", "stderr"):  # as in a service
        monkeypatch.setattr(sys, stream, None)
    resumed = samovar.train(endless, snapshot="latest", iterations=result.steps + 2, out=out)
    assert (resumed.steps, resumed.stopped_by) == (result.steps + 2, None)


def test_on_another_thread_it_takes_no_signal_and_a_killed_rank_is_an_error(tmp_path: Path, endless: Path) -> None:
    """Ctrl-C is the main thread's meanwhile."""
    out, raised, before = tmp_path / "out", [], handlers()

    def train() -> None:
        with pytest.raises(samovar.SamovarError) as caught:
            samovar.train(endless, workers=2, threads_per_worker=1, out=out, quiet=True)
        raised.append(caught.value)

    thread = threading.Thread(target=train)
    thread.start()
    wait_until(lambda: last_step(out) >= 3, "step 3")
    assert handlers() == before
    ranks = [child for child in psutil.Process().children() if "--rank=1" in child.cmdline()]
    ranks[0].kill()
    thread.join(TIMEOUT_S)
    (error,) = raised
    assert type(error) is RankFailed
    assert error.exit_code == 3
    assert re.match(
        r"rank 1 was killed by signal 9 \(SIGKILL\).* after step \d+, .*; no snapshot was written$", str(error)
    )
    assert "no snapshot was written" in (out / "samovar.log").read_text()


@pytest.mark.parametrize(
    ("settings", "flags", "sentence"),
    [
        ({"timeout_s": -1.0}, ("--timeout", -1), "timeout_s: got -1.0 s; give more than 0 and less than a day"),
        ({"stop_rule": "mean"}, ("--stop-rule", "mean"), "stop_rule: workers with sync always step together"),
        ({"warm_up_steps": 3}, ("--warm-up-steps", 3), "warm_up_steps 3: belongs to large_batch; give that too"),
        ({"device": "cuda:99"}, ("--device", "cuda:99"), "device cuda:99: "),
        ({"snapshot": "gone"}, ("--snapshot", "gone"), "snapshot gone: does not exist; give a snapshot folder"),
    ],
)
def test_what_cannot_be_used_is_refused_in_the_commands_words(
    tmp_path: Path, solver: Path, settings: dict[str, Any], flags: tuple[object, ...], sentence: str
) -> None:
    ended = run("train", "--solver", solver, "--out", "out", *flags, folder=tmp_path)
    with pytest.raises(samovar.InputError) as caught:
        samovar.train(solver, out=tmp_path / "out", **settings)
    assert str(caught.value).startswith(sentence)
    words = {"--timeout": "timeout_s", "--stop-rule": "stop_rule", "--warm-up-steps": "warm_up_steps"}
    words |= {"--large-batch": "large_batch", "--device": "device", "--snapshot": "snapshot"}
    assert str(caught.value) == re.sub("|".join(words), lambda found: words[found[0]], ended.error)
    assert caught.value.exit_code == ended.return_code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"moving_rte": 0.5}, "train: there is no argument moving_rte; did you mean 'moving_rate'?"),
        ({"out": ""}, "out '': names no folder; give one, such as . for the current folder"),
        ({"iterations": "5"}, "iterations: got '5'; give a whole number"),
        ({"workers": "many"}, "workers: got 'many'; give a number or 'auto'"),
        ({"metrics": [samovar.Sink()]}, "metrics: got a Sink, but another process writes; give FILE.py:NAME or"),
        ({"record": "yes"}, "record: got 'yes'; give True or False"),
        ({"snapshot": "my--seed/--out/gone"}, "snapshot my--seed/--out/gone: does not exist; give a snapshot folder"),
        ({"strategy": "sync-easgd", "moving_rate": "much"}, "moving_rate: got 'much'; give a value of type float"),
        ({"strategy": "local-sgd", "sync_period_steps": 0}, "sync_period_steps: got 0 steps; give at least 1"),
    ],
)
def test_what_only_a_program_can_get_wrong_is_refused(settings: dict[str, Any], sentence: str, solver: Path) -> None:
    with pytest.raises(samovar.InputError) as caught:
        samovar.train(solver, **settings)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("children", [signal.SIG_DFL, signal.SIG_IGN])
def test_wrong_input_that_a_rank_finds_leaves_no_folder(tmp_path: Path, digits: Path, children: Any) -> None:
    """Also in a program that ignores the ends of its children, such as a service."""
    solver = write_solver(write_net(tmp_path, digits), 2)
    write_net(tmp_path, tmp_path / "nowhere")
    before = signal.signal(signal.SIGCHLD, children)
    try:
        with pytest.raises(samovar.InputError, match="nowhere"):
            samovar.train(solver, out=tmp_path / "out", quiet=True)
        assert signal.getsignal(signal.SIGCHLD) == children
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert not (tmp_path / "out").exists()


def test_the_example_of_the_documents_runs_without_torch_in_the_program(
    tmp_path: Path, solver: Path, repository_root: Path
) -> None:
    text = (repository_root / "docs/how-to/train-from-python.md").read_text()
    (example,) = re.findall(r"^```python\n(import samovar\n.*?)^```", text, re.MULTILINE | re.DOTALL)
    program = f"{example}\nimport sys\nassert 'torch' not in sys.modules\n".replace(
        "examples/lenet/digits_solver.prototxt", str(solver)
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^sync-easgd [01]\.\d{4} runs/", done.stdout, re.MULTILINE), done.stdout
