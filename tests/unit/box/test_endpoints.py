"""Where a box is: what users may write, and what they are told."""

from pathlib import Path

import pytest

from samovar.box.joining import Endpoint, parse_endpoint, take_seat
from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError
from samovar.transports.keys import make_key
from samovar.transports.tcp_listen import listen


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
