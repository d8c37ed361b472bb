"""Launchers meet: what they agree on, whom they refuse, and what each of them is told."""

import re
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, SamovarError
from samovar.launch import meeting
from samovar.launch.meeting import HostHello, HostPlace, Met, meet
from samovar.transports.keys import key_path, make_key
from samovar.transports.links import link_to
from samovar.transports.secure import ConnectionLost
from tests.multiproc.command import wait_until
from tests.multiproc.ports import reserved_port

TIMEOUT_S = 60.0
HELLO = HostHello(0, "first", 2, 1, 0, False, {"samovar": "0.1", "torch": "2.0"}, {"--seed": 1}, "abc")
PLACE = HostPlace(0, "127.0.0.1", 0, 2)


def met(
    places: Sequence[HostPlace], hellos: Sequence[HostHello], timeout_s: float = TIMEOUT_S
) -> list[Met | SamovarError]:
    """What each host gets, all at the same port."""
    found: list[Any] = [None] * len(places)

    def come(number: int, place: HostPlace) -> None:
        try:
            found[number] = meet(place, hellos[number], timeout_s)
        except SamovarError as error:
            found[number] = error

    with reserved_port() as port:
        threads = [
            threading.Thread(target=come, args=(number, replace(place, port=port)))
            for number, place in enumerate(places)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return found


def places(count: int, **more: Any) -> list[HostPlace]:
    return [replace(PLACE, number=number, **({"num_hosts": count} | more)) for number in range(count)]


def hellos(*workers: int, **more: Any) -> list[HostHello]:
    return [replace(HELLO, number=number, name=f"host{number}", workers=n, **more) for number, n in enumerate(workers)]


def closed(found: Sequence[Met | SamovarError]) -> list[Met]:
    """They all met; now they part."""
    assert all(isinstance(each, Met) for each in found), found
    hosts = [each for each in found if isinstance(each, Met)]
    for each in hosts:
        each.close()
    return hosts


def errors(found: Sequence[Met | SamovarError]) -> list[tuple[type, str]]:
    assert not any(isinstance(each, Met) for each in found), found
    return [(type(each), str(each)) for each in found]


def refused(places: Sequence[HostPlace], hellos: Sequence[HostHello], missing: str) -> list[tuple[type, str]]:
    """The errors when time is over; on a busy machine it may be so before those that come have come."""
    found = errors(met(places, hellos, 1.0))
    return found if all(missing in error for _, error in found) else errors(met(places, hellos, 30.0))


def test_all_get_one_plan() -> None:
    found = met(places(3), hellos(2, 1, 3))
    keys = {key_path(each.key).read_text() for each in found if isinstance(each, Met)}
    ports = [[each.getsockname()[1] for each in host.listening] for host in found if isinstance(host, Met)]
    hosts = closed(found)
    assert len({each.hosts for each in hosts}) == len(keys) == 1
    plan = hosts[0].hosts
    assert [(host.name, host.ranks) for host in plan.hosts] == [
        ("host0", (0, 1)),
        ("host1", (2,)),
        ("host2", (3, 4, 5)),
    ]
    assert [port for _, port in plan.addresses] == [port for own in ports for port in own]
    assert [each.number for each in hosts] == [0, 1, 2]


def test_equal_names_get_numbers_and_the_weakest_host_counts() -> None:
    alike = [replace(each, name="vm") for each in hellos(1, 1)]
    mixed = [replace(alike[0], threads=4, spare=2), replace(alike[1], oversubscribed=True)]
    first, second = closed(met(places(2), mixed))
    assert [host.name for host in first.hosts.hosts] == ["vm#0", "vm#1"]
    assert (first.hosts.threads, first.hosts.spare, second.oversubscribed) == (1, 0, True)


def test_by_number_of_ranks_hosts_only_have_an_order() -> None:
    own = [
        replace(place, number=number, num_hosts=None, num_ranks=5)
        for place, number in zip(places(2), (0, 3), strict=True)
    ]
    first, second = closed(met(own, [replace(each, number=n) for each, n in zip(hellos(3, 2), (0, 3), strict=True)]))
    assert [host.ranks for host in first.hosts.hosts] == [(0, 1, 2), (3, 4)]
    assert second.number == 1


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ({"versions": {"samovar": "0.2", "torch": "2.0"}}, r"host 1 \(host1\) has samovar 0.2, and host 0 0.1"),
        ({"versions": {"samovar": "0.1", "torch": "none"}}, r"has torch none, and host 0 2.0"),
        ({"settings": {"--seed": 2}}, r"host 1 \(host1\) has --seed 2, and host 0 1; give all hosts the same"),
        ({"nets": "other"}, r"host 1 \(host1\) has another solver, net or strategy than host 0"),
        ({"threads": "many"}, r"a message does not come from this version of Samovar"),
        ({"settings": 1}, r"a message does not come from this version of Samovar"),
        ({"number": 2}, r"hosts are numbered from 0 to 1"),
    ],
)
def test_a_host_that_does_not_fit_ends_both(other: dict[str, Any], sentence: str) -> None:
    first, second = hellos(1, 1)
    own = places(2)
    found = met([own[0], replace(own[1], number=other.get("number", 1))], [first, replace(second, **other)])
    for kind, error in errors(found):
        assert kind is InputError
        assert re.search(sentence, error), error


def test_a_second_host_of_one_number_goes_and_the_run_goes_on() -> None:
    """It may be of another run that was given the same port."""
    found: list[Met | SamovarError] = []

    def come(hello: HostHello, port: int) -> None:
        try:
            found.append(meet(HostPlace(hello.number, "127.0.0.1", port, 3), hello, TIMEOUT_S))
        except SamovarError as error:
            found.append(error)

    first, second, third = hellos(1, 1, 1)
    with reserved_port() as port:
        threads = [threading.Thread(target=come, args=(hello, port)) for hello in (first, second, second, third)]
        for thread in threads[:3]:
            thread.start()
        wait_until(lambda: found, "the second host of one number goes", TIMEOUT_S)
        threads[3].start()
        for thread in threads:
            thread.join()
    assert re.search(r"is host 1 of the run at 127.0.0.1:\d+ already; give each host its own", str(found[0]))
    assert len(closed(found[1:])) == 3


def test_a_second_host_of_one_number_that_goes_before_its_answer_ends_nothing() -> None:
    first, second = hellos(1, 1)
    there, gone = Mock(is_gone=False), Mock(is_gone=False)
    gone.send.side_effect = ConnectionLost("it is gone")
    came, links = {0: first, 1: second}, dict[int, Any]({1: there})
    with ExitStack() as closing:
        host_0 = meeting._Host0(places(3)[0], first, TIMEOUT_S, pytest.fail)
        host_0._take(gone, {"is": "hello", **asdict(second)}, came, links, closing)
    gone.close.assert_called_once()
    assert (came, links) == ({0: first, 1: second}, {1: there})


def test_who_does_not_come_is_told_to_all() -> None:
    two_of_four = [each for each in places(4) if each.number in (0, 2)], [hellos(1, 1, 1)[n] for n in (0, 2)]
    for kind, error in refused(*two_of_four, "hosts 1, 3"):
        assert kind is DeadlineExceeded
        assert re.search(r"host 0 \(host0\): hosts 1, 3 did not come to 127.0.0.1:\d+ within \d+.0 s", error), error
    for _, error in refused(places(2, num_hosts=None, num_ranks=4), hellos(1, 2), "3 of 4"):
        sentence = r"host 0 \(host0\): 3 of 4 ranks came within \d+.0 s, on host0, host1; see the logs of the others"
        assert re.fullmatch(sentence, error), error
    (alone,) = errors(met(places(2)[1:], hellos(1, 1)[1:], 0.5))
    assert re.search(r"host 0 at 127.0.0.1:\d+ cannot be reached within 0.5 s \(connection refused\); was", alone[1])


def test_a_taken_port_and_an_unknown_name() -> None:
    error = r"port \d+ of 127.0.0.1 is taken, perhaps by another run"
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match=error):
        meet(replace(PLACE, port=taken.getsockname()[1]), HELLO, 1.0)
    with pytest.raises(InputError, match="is not a known host"):
        meet(replace(PLACE, number=1, address="no.such.host.invalid", port=1), hellos(1, 1)[1], 1.0)


@pytest.mark.slow
def test_what_listens_there_and_says_nothing_is_no_host_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(DeadlineExceeded, match="gave no plan"):
        meet(replace(PLACE, number=1, port=other.getsockname()[1]), hellos(1, 1)[1], 0.5)


def test_strangers_do_not_disturb() -> None:
    def shout(port: int) -> bool:
        try:
            deep = b"samovarL" + struct.pack("<QQ", 200_000, 0) + b"[" * 200_000
            for word in (b"", b"GET / HTTP/1.1\r\n\r\n", b"samovarL" + b"\xff" * 16, b"samovarL" + bytes(16), deep):
                with socket.create_connection(("127.0.0.1", port)) as stranger:
                    stranger.sendall(word)
        except ConnectionRefusedError:
            return False
        return True

    with reserved_port() as port:
        first = places(2)[0]
        found: list[Met] = []
        host_0 = threading.Thread(target=lambda: found.append(meet(replace(first, port=port), HELLO, TIMEOUT_S)))
        host_0.start()
        wait_until(lambda: shout(port), "host 0 listens", TIMEOUT_S)
        found.append(meet(replace(places(2)[1], port=port), hellos(1, 1)[1], TIMEOUT_S))
        host_0.join()
    assert len(closed(found)) == 2


def test_with_a_key_only_its_holders_meet(tmp_path: Path) -> None:
    """Host 0 makes a missing key."""
    key = tmp_path / "key.pem"
    with reserved_port() as port:
        found: list[Met] = []
        first = replace(PLACE, key_file=key, port=port)
        host_0 = threading.Thread(target=lambda: found.append(meet(first, HELLO, TIMEOUT_S)))
        host_0.start()
        wait_until(key.exists, "host 0 makes the key", TIMEOUT_S)
        other = tmp_path / "other.pem"
        make_key(other)
        with pytest.raises(InputError, match="does not hold the same key"):
            meet(replace(first, number=1, key_file=other), hellos(1, 1)[1], TIMEOUT_S)
        found.append(meet(replace(first, number=1), hellos(1, 1)[1], TIMEOUT_S))
        host_0.join()
    assert all(each.is_secret for each in closed(found))


@pytest.mark.parametrize(("first", "second"), [("one.pem", None), ("one.pem", "two.pem"), (None, "one.pem")])
def test_a_host_with_another_key_is_named_at_once(tmp_path: Path, first: str | None, second: str | None) -> None:
    """Nothing else says on host 0 why it waits."""
    warnings: list[str] = []
    own, other = (None if name is None else tmp_path / name for name in (first, second))
    for path in filter(None, (own, other)):
        make_key(path)
    with reserved_port() as port:
        place = replace(PLACE, key_file=own, port=port)
        found: list[Met] = []

        def come() -> bool:
            with pytest.raises(SamovarError, match=r"--key-file|the same key"):
                meet(replace(place, number=1, key_file=other), hellos(1, 1)[1], 1.0)
            return bool(warnings)

        host_0 = threading.Thread(target=lambda: found.append(meet(place, HELLO, 2 * TIMEOUT_S, warnings.append)))
        host_0.start()
        wait_until(come, "host 0 warns", TIMEOUT_S)
        found.append(meet(replace(place, number=1), hellos(1, 1)[1], TIMEOUT_S))
        host_0.join()
    closed(found)
    (warning,) = warnings
    assert warning == (
        "host 0 (first): 127.0.0.1 came without the same key; give all hosts the same --key-file, or none"
    )


def test_a_host_that_comes_before_the_key_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its first look host 0 has only begun to write it."""
    key, made = tmp_path / "key.pem", tmp_path / "made.pem"
    key.touch()
    make_key(made)
    monkeypatch.setattr("samovar.launch.meeting.time", SimpleNamespace(sleep=lambda _seconds: made.rename(key)))
    with reserved_port() as port:
        found: list[Met] = []
        place = replace(PLACE, key_file=key, port=port)
        other = replace(place, number=1)
        host_1 = threading.Thread(target=lambda: found.append(meet(other, hellos(1, 1)[1], TIMEOUT_S)))
        host_1.start()
        wait_until(lambda: not made.exists(), "host 1 has looked", TIMEOUT_S)
        found.append(meet(place, HELLO, TIMEOUT_S))
        host_1.join()
    assert len(closed(found)) == 2


def test_a_key_that_nobody_makes_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"key file .*key.pem: No such file or directory; copy the job's, or name it"):
        meet(replace(PLACE, number=1, key_file=tmp_path / "key.pem"), hellos(1, 1)[1], 0.1)


def test_a_host_that_went_may_come_again() -> None:
    """While host 0 still waits for another one."""
    first, second, third = hellos(1, 1, 1)
    found: list[Any] = [None] * 3

    def come(hello: HostHello, port: int) -> None:
        try:
            place = replace(PLACE, number=hello.number, num_hosts=3, port=port)
            found[hello.number] = meet(place, hello, TIMEOUT_S)
        except SamovarError as error:
            found[hello.number] = error

    with reserved_port() as port:
        threads = [threading.Thread(target=come, args=(hello, port)) for hello in (first, second, third)]
        threads[0].start()
        link = link_to(("127.0.0.1", port), None, "host 1", Deadline.after(TIMEOUT_S))
        hello = {"is": "hello", **asdict(replace(second, address="127.0.0.1", ports=(1,)))}
        link.send(hello, Deadline.after(TIMEOUT_S))
        link.close()
        for thread in threads[1:]:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(closed(found)) == 3
