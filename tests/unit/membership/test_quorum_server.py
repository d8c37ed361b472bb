"""The quorum behind its socket: seats in threads of this process."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from samovar.core.errors import InputError, RankFailed
from samovar.membership.quorum import QuorumSize
from samovar.membership.quorum_messages import Decision, Hello, Last
from samovar.membership.quorum_seat import QuorumSeat
from samovar.membership.quorum_server import QuorumServer

STATE = b"weights"


@pytest.fixture
def job(tmp_path: Path) -> str:
    return f"unit-{os.getpid()}-{tmp_path.name.replace('[', '-').replace(']', '')}"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def packed(state: Any) -> tuple[dict[str, Any], int]:
    descriptor = os.memfd_create("state")
    os.write(descriptor, STATE)
    return dict(state), descriptor


def unpacked(content: Any, descriptor: int) -> Any:
    return {**content, "read": os.pread(descriptor, 100, 0)}


def seat(job: str, place: int, *, joins: bool = False, of: str = "a net") -> QuorumSeat:
    hello = Hello(place, f"{os.getpid()}/0/{place}", of, 30.0, (place,), joins)
    return QuorumSeat(job, hello, packed, unpacked)


def test_two_seats_exchange_and_a_third_comes_with_the_state(job: str, pool: ThreadPoolExecutor) -> None:
    with QuorumServer(job, QuorumSize(2, min_workers=3)):
        first, second, third = seat(job, 0), seat(job, 1), seat(job, 0, joins=True)
        entered = [pool.submit(one.enter) for one in (first, second, third)]
        assert entered[0].result()[0].is_founder
        first.give({"step": 0})
        admission, state = entered[1].result()
        assert (admission.division.rank, state) == (1, {"step": 0, "read": STATE})
        third_admission, _ = entered[2].result()
        assert third_admission.division.world_size == 3
        goes = [pool.submit(one.ready, 4, Last.NO) for one in (first, second, third)]
        assert {go.result().generation for go in goes} == {1}
        assert os.fstat(third.segment).st_size > 0
        votes = [pool.submit(one.vote, True) for one in (first, second, third)]
        assert all(vote.result().is_committed for vote in votes)
        third.close()
        goes = [pool.submit(one.ready, 4, Last.FINISH) for one in (first, second)]
        assert all((go.result().generation, go.result().ends, len(go.result().gone)) == (2, True, 1) for go in goes)
        votes = [pool.submit(one.vote, True) for one in (first, second)]
        assert [vote.result() for vote in votes] == [Decision(True), Decision(True)]
        first.close()
        second.close()


def test_a_seat_whose_launcher_ends_says_so(job: str, pool: ThreadPoolExecutor) -> None:
    with QuorumServer(job, QuorumSize(2)):
        first = seat(job, 0)
        entered = pool.submit(first.enter)
    with pytest.raises(RankFailed, match="its launcher is gone"):
        entered.result()
    first.close()


def test_a_founder_that_ends_before_it_comes_is_not_waited_for(job: str, pool: ThreadPoolExecutor) -> None:
    with QuorumServer(job, QuorumSize(2)) as server:
        first = seat(job, 0)
        entered = pool.submit(first.enter)
        server.rank_ended(1 << 30)
        assert entered.result()[0].is_founder
        first.close()


def test_another_net_is_refused(job: str, pool: ThreadPoolExecutor) -> None:
    with QuorumServer(job, QuorumSize(1)):
        first, other = seat(job, 0), seat(job, 0, joins=True, of="another net")
        pool.submit(first.enter).result()
        with pytest.raises(InputError, match="settings differ"):
            other.enter()
        first.close()
        other.close()


def test_there_is_one_job_of_a_name_and_without_one_nobody_joins(job: str) -> None:
    with pytest.raises(InputError, match="there is no elastic job"):
        seat(job, 0)
    with QuorumServer(job, QuorumSize(1)), pytest.raises(InputError, match="in use"):
        QuorumServer(job, QuorumSize(1))
    assert threading.active_count() == 1
