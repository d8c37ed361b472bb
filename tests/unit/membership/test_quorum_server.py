"""The quorum behind its socket: seats in threads of this process."""

import math
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from samovar._native import Segment
from samovar.core.clock import Deadline, polled
from samovar.core.errors import InputError, RankFailed, SamovarError
from samovar.membership import state_courier
from samovar.membership.quorum import QuorumSize
from samovar.membership.quorum_door import address_of
from samovar.membership.quorum_messages import Decision, Hello, Last
from samovar.membership.quorum_seat import QuorumSeat, _Mail
from samovar.membership.quorum_server import Meeting, QuorumRelay, QuorumServer
from samovar.membership.state_courier import Courier, StatePlace
from samovar.transports.keys import Key, make_key, read_key
from samovar.transports.tcp_listen import listen
from samovar.transports.unix_sockets import connect, receive, send

STATE = b"weights"


@pytest.fixture
def job(tmp_path: Path) -> str:
    return f"unit-{os.getpid()}-{tmp_path.name.replace('[', '-').replace(']', '')}"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def in_time() -> Deadline:
    return Deadline.after(60.0)


def packed(state: Any) -> tuple[dict[str, Any], int]:
    descriptor = os.memfd_create("state")
    os.write(descriptor, STATE)
    return dict(state), descriptor


def unpacked(content: Any, descriptor: int) -> Any:
    return {**content, "read": os.pread(descriptor, 100, 0)}


def seat(
    job: str, place: int, *, joins: bool = False, of: str = "a net", door: str = "", address: str | None = None
) -> QuorumSeat:
    hello = Hello(place, f"{os.getpid()}/0/{place}", of, 30.0, (place,), joins)
    return QuorumSeat(job, hello, packed, unpacked, door, address)


@pytest.fixture
def key(tmp_path: Path) -> Key:
    make_key(tmp_path / "key.pem")
    return read_key(tmp_path / "key.pem")


def relay_to(server: QuorumServer, job: str, key: Key, door: str) -> QuorumRelay:
    assert server.address is not None
    return QuorumRelay(job, door, Meeting(*server.address, key, "far"))


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


def test_workers_of_other_hosts_come_by_relays_which_bring_their_state(
    job: str, pool: ThreadPoolExecutor, key: Key
) -> None:
    """The founder is on the first host. It dies, and the first worker of the second host gives the state to the third.

    A lost host is told to those that exchange, and its workers are out.
    """
    with QuorumServer(job, QuorumSize(1, min_workers=2), Meeting("127.0.0.1", 0, key, "near")) as server:
        first = seat(job, 0, address="127.0.0.1")
        entered = pool.submit(first.enter)
        with relay_to(server, job, key, "two") as two, ExitStack() as third_host:
            three = third_host.enter_context(relay_to(server, job, key, "three"))
            second = seat(job, 0, joins=True, door="two", address=two.address)
            admitted = pool.submit(second.enter)
            assert entered.result()[0].is_founder
            first.give({"step": 0})
            assert admitted.result()[1] == {"step": 0, "read": STATE}
            first.close()
            third = seat(job, 0, joins=True, door="three", address=three.address)
            admitted, waits = pool.submit(third.enter), pool.submit(second.ready, 4, Last.NO)
            assert waits.result().hosts == ("far",)
            decision = second.vote(True)
            assert decision.gives
            second.give({"step": 4})
            assert admitted.result()[1] == {"step": 4, "read": STATE}
            goes = [pool.submit(one.ready, 4, Last.NO).result for one in (second, third)]
            go = goes[0]()
            assert (len(set(go.hosts)), len(set(go.addresses)), None in go.addresses) == (2, 2, False)
            lost: list[tuple[int, str]] = []
            second.watch(lambda *what: lost.append(what))
            third.watch(lambda *_what: None)
            third_host.close()
            assert polled(lambda: bool(lost), Deadline.after(60.0), 0.01)
            assert (lost[0][0], "worker 3 (process" in lost[0][1]) == (1, True)
            with pytest.raises(RankFailed, match="its launcher is gone"):
                third.vote(False)
            second.close()
            third.close()


def test_a_worker_that_comes_to_a_host_whose_quorum_is_lost_hears_it_at_once(
    job: str, pool: ThreadPoolExecutor, key: Key
) -> None:
    with ExitStack() as first_host:
        server = first_host.enter_context(QuorumServer(job, QuorumSize(1), Meeting("127.0.0.1", 0, key, "near")))
        with relay_to(server, job, key, "two") as relay:
            earlier = seat(job, 0, joins=True, door="two", address=relay.address)
            waits = pool.submit(earlier.enter)
            first_host.close()
            for one, entered in ((earlier, waits), (later := seat(job, 1, joins=True, door="two"), None)):
                with pytest.raises(RankFailed, match=r"the host that began it is lost: .* continue without this host"):
                    (entered or pool.submit(one.enter)).result()
                one.close()
            later.close()


def test_a_state_for_which_there_is_no_room_is_one_that_cannot_be_had(
    key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that cannot be written to is in the place of a full memory."""
    monkeypatch.setattr(state_courier, "create_empty", lambda: os.open(os.devnull, os.O_RDONLY))
    brought: SimpleQueue[int] = SimpleQueue()
    with memory_of(STATE) as descriptor:
        courier = Courier(listen("127.0.0.1"), key, lambda link, _message: link.close())
        place = StatePlace.new({}, courier.address)
        courier.offer(place.token, descriptor)
        courier.bring(place, brought.put)
        assert brought.get(timeout=30.0) == -1
        courier.close()


@contextmanager
def memory_of(content: bytes) -> Iterator[int]:
    descriptor = os.memfd_create("state")
    os.write(descriptor, content)
    yield descriptor
    os.close(descriptor)


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


def test_a_door_that_is_taken_leaves_nothing_behind(job: str, key: Key) -> None:
    meeting = Meeting("127.0.0.1", 0, key, "near")
    with (
        QuorumServer(job, QuorumSize(1), meeting) as server,
        relay_to(server, job, key, "door"),
        pytest.raises(InputError, match="in use"),
    ):
        relay_to(server, job, key, "door")
    assert threading.active_count() == 1


HELLO = {"kind": "hello", "place": 1, "mark": "5/0/0", "job": "a net", "timeout_s": 9.0, "cores": [0], "joins": True}


@pytest.mark.parametrize(
    "content",
    [
        {"kind": "ready", "num_steps": math.inf, "last": "no", "origin": ""},
        {"kind": "ready", "num_steps": 1, "last": "no", "origin": "", "address": []},
        {"kind": "state", "state": {}},
        HELLO | {"timeout_s": "long"},
        HELLO | {"cores": [[]]},
        HELLO | {"mark": None, "cores": None},
    ],
)
def test_a_worker_that_speaks_another_language_ends_nobody_else(
    job: str, pool: ThreadPoolExecutor, content: dict[str, Any]
) -> None:
    with QuorumServer(job, QuorumSize(1)):
        stranger = connect(address_of(job), Deadline.after(30.0))
        assert stranger is not None
        with stranger:
            send(stranger, content, Deadline.after(30.0))
            with pytest.raises(SamovarError):
                receive(stranger, Deadline.after(30.0))
        first = seat(job, 0)
        assert pool.submit(first.enter).result()[0].is_founder
        first.close()


def test_a_loss_among_new_ranks_is_not_told_to_those_of_before() -> None:
    """It comes after a Go of a new generation, and before this worker has regrouped."""
    told: list[tuple[str, int]] = []
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mail = _Mail(here)
    with there:
        for generation in (1, 1, 2):
            send(there, {"kind": "Go", "generation": generation}, in_time())
            assert mail.take(in_time()).content["generation"] == generation
            if not told:
                mail.watch(lambda rank, _who: told.append(("first", rank)))
            send(there, {"kind": "Lost", "rank": generation, "who": "a worker"}, in_time())
            send(there, {"kind": "Decision"}, in_time())
            mail.take(in_time())
        mail.watch(lambda rank, _who: told.append(("second", rank)))
    mail.close()
    assert told == [("first", 1), ("first", 1), ("second", 2)]


def test_a_message_that_is_too_long_is_told_to_those_that_wait_for_it(job: str, pool: ThreadPoolExecutor) -> None:
    """Each worker's own mark is short enough, and all of them together are not."""
    with QuorumServer(job, QuorumSize(2)):
        hellos = [Hello(place, f"{place}/{'0' * 40_000}", "a net", 30.0) for place in range(2)]
        first, second = (QuorumSeat(job, hello, packed, unpacked) for hello in hellos)
        entered = [pool.submit(one.enter) for one in (first, second)]
        entered[0].result()
        first.give({})
        entered[1].result()
        for exchange in [pool.submit(one.ready, 4, Last.NO) for one in (first, second)]:
            with pytest.raises(InputError, match=r"a message has 80,\d+ bytes, of at most 60,000; try with fewer"):
                exchange.result()
        with pytest.raises(InputError, match="a message has"):
            first.give({"step": "0" * 70_000})
        first.close()
        second.close()


def test_a_job_on_several_hosts_refuses_a_worker_that_listens_nowhere(
    job: str, pool: ThreadPoolExecutor, key: Key
) -> None:
    with QuorumServer(job, QuorumSize(1), Meeting("127.0.0.1", 0, key, "near")):
        first, other = seat(job, 0, address="127.0.0.1"), seat(job, 0, joins=True)
        assert pool.submit(first.enter).result()[0].is_founder
        with pytest.raises(InputError, match="it is on several hosts; join it with --master-addr"):
            other.enter()
        first.close()
        other.close()


def test_a_lost_host_leaves_the_others_memory_for_as_many_as_they_are(
    job: str, pool: ThreadPoolExecutor, key: Key
) -> None:
    """The lost host comes first in the order of workers, and one of its two had not come to the exchange."""

    def enter(one: QuorumSeat, at_door: int) -> Any:
        entering = pool.submit(one.enter)
        assert polled(lambda: len(server._quorum._door) == at_door, in_time(), 0.01)
        return entering

    with QuorumServer(job, QuorumSize(1), Meeting("127.0.0.1", 0, key, "near")) as server, ExitStack() as far_host:
        relay = far_host.enter_context(relay_to(server, job, key, "two"))
        first = seat(job, 0, address="127.0.0.1")
        first.enter()
        first.give({"step": 0})
        far = [seat(job, place, joins=True, door="two", address=relay.address) for place in range(2)]
        entering = [enter(one, place + 1) for place, one in enumerate(far)]
        first.ready(4, Last.NO)
        first.vote(True)
        first.give({"step": 4})
        for one in entering:
            one.result()
        first.close()
        assert polled(lambda: len(server._quorum.members) == 2, in_time(), 0.01)
        back = [seat(job, place, joins=True, address="127.0.0.1") for place in range(2)]
        entering = [enter(one, place + 1) for place, one in enumerate(back)]
        for exchange in [pool.submit(one.ready, 4, Last.NO) for one in far]:
            exchange.result()
        votes = [vote.result() for vote in [pool.submit(one.vote, True) for one in far]]
        far[[vote.gives for vote in votes].index(True)].give({"step": 8})
        for one in entering:
            one.result()
        exchanges = [pool.submit(one.ready, 4, Last.NO) for one in (*back, far[1])][:2]
        assert polled(lambda: len(server._quorum._waiting()) == 3, in_time(), 0.01)
        far_host.close()
        for one, exchange in zip(back, exchanges, strict=True):
            assert exchange.result().hosts.count("near") == 2
            Segment(one.segment, 2)
        for one in (*far, *back):
            one.close()
