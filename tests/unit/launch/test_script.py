"""The sentence that ends a run, the words for where hosts meet, and the groups that the guard is to end."""

import os
import signal
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from samovar.launch import script
from samovar.launch.guard import Guard
from samovar.launch.script import ScriptLaunch, describe_route
from samovar.report.script_output import end_sentence


@dataclass(frozen=True)
class Ended:
    rank: int
    return_code: int | None
    process_id: int = 77
    seconds: float = 2.04


FIRST = Ended(1, 1)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([], ""),
        ([Ended(0, None)], "; rank 0 was ended with it"),
        ([Ended(rank, None) for rank in (0, 2)], "; ranks 0 and 2 were ended with it"),
        ([Ended(rank, None) for rank in (5, 4, 3, 0)], "; ranks 0 and 3 to 5 were ended with it"),
        ([Ended(rank, None) for rank in (0, 2, 3, 7)], "; ranks 0, 2, 3 and 7 were ended with it"),
        (
            [Ended(0, 0), Ended(2, -9), Ended(3, None)],
            "; rank 2 failed too; rank 0 had ended well; rank 3 was ended with it",
        ),
    ],
)
def test_what_became_of_the_others_is_told(others: list[Ended], words: str) -> None:
    expected = f"rank 1 (on tea, process 77) ended with exit code 1 after 2.0 s{words}"
    assert end_sentence(FIRST, [FIRST, *others], "tea", ()) == expected


def test_signals_have_names() -> None:
    killed = Ended(1, -11)
    sentence = end_sentence(killed, [killed], "tea", (2, 15, 15))
    assert "was killed by signal 11 (SIGSEGV) after" in sentence
    assert sentence.endswith("after 2.0 s, SIGINT, SIGTERM having been passed on")
    asked = Ended(1, -2)
    assert end_sentence(asked, [asked, Ended(0, -2)], "tea", (2,)) == "all ranks were stopped by SIGINT"
    assert "SIGINT having been passed on; rank 0 failed too" in end_sentence(asked, [asked, Ended(0, 6)], "tea", (2,))
    assert "perhaps by the system for lack of memory" in end_sentence(Ended(1, -9), [], "tea", ())
    assert "signal 40 (40)" in end_sentence(Ended(1, -40), [], "tea", ())


def test_a_route_is_told_with_its_interface() -> None:
    assert describe_route("127.0.0.1", 29500, is_own=True) == (
        "they meet at 127.0.0.1 port 29500, reached from 127.0.0.1 (interface lo)"
    )


def test_an_address_that_is_another_host_s_is_told() -> None:
    """Routed somewhere, whatever this machine's network: a documentation address, or no route at all."""
    told = describe_route("203.0.113.7", 29500, is_own=True)
    assert "is not this host's own address" in told or "cannot be reached from here now" in told


def test_a_name_that_cannot_be_one_is_told() -> None:
    assert "cannot be reached from here now: " in describe_route("a" * 70, 1, is_own=False)


def test_a_guard_that_stands_still_ends_with_its_launcher() -> None:
    with Guard() as guard:
        os.kill(guard._process.pid, signal.SIGSTOP)
    assert guard._process.returncode == -signal.SIGKILL


class NotedGuard:
    """The groups of processes that would be killed with the launcher."""

    def __init__(self) -> None:
        self.groups: set[int] = set()
        self.seen: list[int] = []
        self.watch, self.forget = self._watch, self.groups.discard

    def _watch(self, group: int) -> None:
        self.seen.append(len(self.groups))
        self.groups.add(group)

    def __enter__(self) -> "NotedGuard":
        return self

    def __exit__(self, *_exception: object) -> None: ...


def test_after_a_restart_the_guard_ends_no_group_whose_number_others_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 fails, and rank 1, which the launcher ends, goes with it."""
    guard, programs = NotedGuard(), ["raise SystemExit(1)", "import signal; signal.pause()"]
    monkeypatch.setattr(script, "Guard", lambda: guard)
    outlet = SimpleNamespace(blocked=lambda: (), pump=lambda: None)
    launch = ScriptLaunch(
        *(lambda rank, _cpus: [sys.executable, "-I", "-S", "-c", programs[rank]], 2, None, lambda *_: None, outlet),
        *(lambda _end: 0.0, 1.0, {}, 1),
    )
    assert {end.rank: end.return_code for end in launch.run()} == {0: 1, 1: None}
    assert guard.seen == [0, 1, 0, 1]
