"""A wait for other ranks continues while one of them is busy and its heart beats."""

import threading
import time
from collections.abc import Iterator

import pytest
from torch.distributed import HashStore

from samovar.api import heartbeats
from samovar.api.heartbeats import Heartbeats
from samovar.transports.rendezvous import Rendezvous

SHORT_S = 0.05


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Heartbeats, Heartbeats]]:
    """Two ranks that share a store."""
    monkeypatch.setattr(heartbeats, "_BEAT_S", SHORT_S / 5)
    monkeypatch.setattr(heartbeats, "_SILENCE_S", 1.0)
    store = HashStore()
    own, other = (Heartbeats(Rendezvous(store, "a store", f"rank {rank}")) for rank in range(2))
    yield own, other
    own.close()
    other.close()


def test_a_deadline_is_final_if_nobody_is_busy(ranks: tuple[Heartbeats, Heartbeats]) -> None:
    own, other = ranks
    deadline = own.deadline(0.0)
    assert deadline.passed()
    with other.busy():
        assert deadline.passed()


def test_it_moves_while_another_rank_is_busy_and_no_longer(ranks: tuple[Heartbeats, Heartbeats]) -> None:
    own, other = ranks
    deadline = own.deadline(SHORT_S)
    with other.busy():
        for _ in range(5):
            assert not threading.Event().wait(SHORT_S)
            assert not deadline.passed()
    while not deadline.passed():
        assert not threading.Event().wait(SHORT_S)


def test_a_rank_that_was_busy_a_moment_ago_gets_its_time(ranks: tuple[Heartbeats, Heartbeats]) -> None:
    own, other = ranks
    deadline = own.deadline(0.2)
    while deadline.at_s > time.monotonic():
        with other.busy():
            pass
    assert not deadline.passed()


def test_a_rank_that_fell_silent_is_not_awaited(
    ranks: tuple[Heartbeats, Heartbeats], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = ranks
    monkeypatch.setattr(other, "_beat", lambda: None)  # as in a process that is stopped
    with other.busy():
        assert own.deadline(0.0).passed()


class StallingStore(HashStore):
    """It does not answer in time to the first beat."""

    has_stalled = False

    def add(self, key: str, amount: int) -> int:
        if key == heartbeats._BEATS and amount and not self.has_stalled:
            self.has_stalled = True
            raise TimeoutError
        return super().add(key, amount)


@pytest.mark.usefixtures("ranks")  # for their short times
def test_after_a_stall_of_the_store_the_heart_beats_on() -> None:
    store = StallingStore()
    own, other = (Heartbeats(Rendezvous(store, "a store", f"rank {rank}")) for rank in range(2))
    deadline = own.deadline(SHORT_S)
    with other.busy():
        for _ in range(5):
            assert not threading.Event().wait(SHORT_S)
            assert not deadline.passed()
    assert store.has_stalled


def test_a_busy_rank_does_not_prolong_its_own_waits(ranks: tuple[Heartbeats, Heartbeats]) -> None:
    own, _ = ranks
    with own.busy():
        assert own.deadline(0.0).passed()


def test_a_single_process_has_no_store() -> None:
    alone = Heartbeats()
    with alone.busy():
        assert alone.deadline(0.0).passed()
        assert not alone.deadline(10.0).passed()
