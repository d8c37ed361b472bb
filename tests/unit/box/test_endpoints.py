"""Where a box is: what users may write, and what they are told."""

from pathlib import Path

import pytest

from samovar.box.endpoints import Endpoints, buffer_name, drop_command
from samovar.box.joining import Endpoint, parse_endpoint, take_seat
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError
from samovar.transports.keys import make_key
from samovar.transports.tcp_listen import listen

DEFAULT = Endpoint("default", None, None)
FAR = Endpoint(None, ("host0", 4711), Path("key"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("here:port", "HOST:PORT with a port"),
        ("host:0", "HOST:PORT with a port"),
        ("host:65536", "HOST:PORT with a port"),
        (":4711", "HOST:PORT with a port"),
        ("a/b", "give letters, digits"),
        ("", "give letters, digits"),
        ("host:4711", "wants its key; give --key-file FILE"),
    ],
)
def test_places_that_are_none(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_endpoint(text, None)


def test_places(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    make_key(key)
    assert parse_endpoint("default", None) == Endpoint("default", None, None)
    assert parse_endpoint("host0:4711", key) == Endpoint(None, ("host0", 4711), key)
    assert parse_endpoint("[::1]:4711", key) == Endpoint(None, ("::1", 4711), key)
    with pytest.raises(InputError, match="box 'default' is one of this host"):
        parse_endpoint("default", key)
    with pytest.raises(InputError, match="No such file"):
        parse_endpoint("host0:4711", tmp_path / "none.pem")
    key.chmod(0o644)
    with pytest.raises(InputError, match="others may read it"):
        parse_endpoint("host0:4711", key)


def test_a_box_that_is_not_there(tmp_path: Path) -> None:
    make_key(tmp_path / "key.pem")
    with listen() as listening:
        port = listening.getsockname()[1]
    place = parse_endpoint(f"127.0.0.1:{port}", tmp_path / "key.pem")
    with pytest.raises(DeadlineExceeded, match=rf"rank 1: .*127\.0\.0\.1:{port} cannot be reached within"):
        take_seat(place, "c", "rank 1", Deadline.after(0.1))


@pytest.mark.parametrize(
    ("net_name", "name"),
    [("lenet_digits", "lenet_digits"), ("Alex Net/v2.1", "Alex-Net-v2.1"), ("-_.", "net"), ("x" * 70, "x" * 64)],
)
def test_a_net_gives_its_name_to_its_buffer(net_name: str, name: str) -> None:
    assert buffer_name(net_name) == name


@pytest.mark.parametrize(
    ("boxes", "flags"),
    [
        ([DEFAULT], ""),
        ([Endpoint("mine", None, None)], " --box mine"),
        ([FAR], " --box host0:4711 --key-file key"),
        ([Endpoint(None, ("::1", 4711), Path("key"))], " --box [::1]:4711 --key-file key"),
        ([DEFAULT, FAR], " --box default,host0:4711 --key-file key"),
    ],
)
def test_the_command_that_deletes_a_buffer_can_be_copied(boxes: list[Endpoint], flags: str) -> None:
    assert drop_command(Endpoints(tuple(boxes)), "net") == f"samovar box drop net{flags}"
