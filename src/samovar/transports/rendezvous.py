"""The rendezvous of ranks that have nothing else in common yet: a store of keys and values."""

import errno
import fcntl
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Protocol, TypeVar

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed
from samovar.core.host import refuse_name, says_loopback

_Answer = TypeVar("_Answer")
_RETRY_S = 0.05
_CONNECT_S = 5.0
_FIRST_POLL_S, _LAST_POLL_S = 0.002, 0.1
_LEAST_ANSWER_S = 0.5  # for the last question before a deadline


class Store(Protocol):
    """The methods that we use of torch's stores. A call may hang if the process that serves the store is stopped."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...
    def add(self, key: str, amount: int, /) -> int: ...


class Rendezvous:
    """The store of one rendezvous, served at `server`: a key is set once and asked for until it exists.

    `who` begins every error.
    """

    def __init__(self, store: Store, server: str, who: str) -> None:
        self.store = store
        self.server = server
        self._who = who

    def tell(self, key: str, value: str, deadline: Deadline) -> None:
        """Set a key. Raises RankFailed if the server is gone, DeadlineExceeded if it does not answer."""
        self._ask(lambda: self.store.set(key, value), deadline)

    def claim(self, key: str, deadline: Deadline) -> bool:
        """Whether nobody claimed this key before. Raises as `tell`."""
        return self.count(key, 1, deadline) == 1

    def count(self, key: str, amount: int, deadline: Deadline) -> int:
        """Add to a number, which begins at 0; the sum. Raises as `tell`."""
        return self._ask(lambda: self.store.add(key, amount), deadline)

    def missing(self, keys: Sequence[str], deadline: Deadline, answered: Deadline | None = None) -> list[str]:
        """Wait for all `keys`; return those that were not set by the deadline. Raises as `tell`.

        With `answered` the store has until then for an answer that was asked for in time.
        """
        left, pause_s = list(keys), _FIRST_POLL_S
        while left and not deadline.passed():
            last_s = (answered or deadline).at_s
            last = Deadline(max(last_s, Deadline.after(_LEAST_ANSWER_S).at_s))  # a store that lives is heard
            left = [key for key in left if not self._ask(lambda key=key: self.store.check([key]), last)]  # type: ignore[misc]
            if left:
                time.sleep(min(pause_s, deadline.remaining_s()))
                pause_s = min(2 * pause_s, _LAST_POLL_S)
        return left

    def value(self, key: str, deadline: Deadline) -> str:
        """The value of `key`, which exists. Raises as `tell`."""
        return self._ask(lambda: self.store.get(key), deadline).decode()

    def _ask(self, call: Callable[[], _Answer], deadline: Deadline) -> _Answer:
        """Torch's own waits for a server that is stopped may never end."""
        waiting_s = deadline.remaining_s()
        try:
            return within(call, deadline)
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"{self._who}: the store at {self.server} did not answer within {waiting_s:.1f} s; "
                "is that process stopped?"
            ) from error
        except RuntimeError as error:
            raise RankFailed(
                f"{self._who}: the store at {self.server} is gone ({first_line(error)}): rank 0 ended; see its log"
            ) from error


def within(call: Callable[[], _Answer], deadline: Deadline) -> _Answer:
    """The result of `call`. It runs in a thread, which is left behind with TimeoutError if it takes too long."""
    answers: list[_Answer] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            answers.append(call())
        except Exception as error:  # to be raised where it is waited for
            errors.append(error)

    thread = threading.Thread(target=work, name="samovar-store", daemon=True)
    thread.start()
    thread.join(deadline.timeout_s())
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError
    return answers[0]


def first_line(error: Exception) -> str:
    """The first line of torch's message, without its stack."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def await_server(address: str, port: int, who: str, deadline: Deadline) -> None:
    """Return as soon as something listens at `address`:`port`; `who` asks. Raises DeadlineExceeded, InputError."""
    waiting_s = deadline.remaining_s()
    reason = "no time was given"
    while not deadline.passed():
        try:
            socket.create_connection((address, port), min(deadline.timeout_s(), _CONNECT_S)).close()
            return
        except (OSError, UnicodeError) as error:
            refuse_name(f"{who}: MASTER_ADDR {address!r}", error)
            reason = getattr(error, "strerror", None) or "no answer"
        time.sleep(min(_RETRY_S, deadline.remaining_s()))
    raise DeadlineExceeded(
        f"{who}: rank 0 did not open its store at {address}:{port} within {waiting_s:.1f} s ({reason}); "
        "was rank 0 started, and is MASTER_ADDR its host?"
    )


def listen_at(address: str, port: int) -> socket.socket | None:
    """A socket that listens there; None if the port is taken (perhaps by a store of this very process).

    It binds only that one address, with one exception. A name other than localhost may lead to loopback on its own
    host, as in Debian's /etc/hosts. It then binds all addresses, because other hosts know the name under another one.
    """
    try:
        family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(f"MASTER_ADDR {address!r} is not a known host ({error})") from error
    if leads_here_alone(address, str(place[0])):
        place = ("::" if family == socket.AF_INET6 else "0.0.0.0", *place[1:])
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(place)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        if place[0] in ("::", "0.0.0.0") or error.errno == errno.EADDRINUSE:
            return None
        raise InputError(
            f"rank 0 cannot listen at MASTER_ADDR {address}, port {port}: {error.strerror}; "
            "MASTER_ADDR must be an address of the host that runs rank 0"
        ) from error
    return listener


def is_loopback(address: str) -> bool:
    """Whether a numeric address leads back to its own host."""
    return ip_address(address.partition("%")[0]).is_loopback


def leads_here_alone(name: str, place: str) -> bool:
    """Whether a name whose numeric address is `place` leads to this host alone without saying so."""
    return is_loopback(place) and not says_loopback(name)


_SIOCGIFADDR = 0x8915
_REQUEST_BYTES = 256
_ADDRESS = slice(20, 24)  # of struct ifreq: 16 bytes of name, then family, port, address
_ANY_PORT = 9


def addresses_towards(address: str) -> tuple[str, str]:
    """The address from which this host reaches `address`, and `address` as a number; nothing is sent.

    Raises OSError if there is no such name or no route, UnicodeError if it cannot be a name.
    """
    family, _, _, _, target = socket.getaddrinfo(address, _ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # of a datagram socket: only asks the routing table
        return str(probe.getsockname()[0]), str(target[0])


def address_of(interface: str) -> str | None:
    """Its first IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, struct.pack(f"{_REQUEST_BYTES}s", interface.encode()))
        except OSError:
            return None
    return socket.inet_ntoa(answer[_ADDRESS])


def interface_of(address: str) -> str | None:
    """The name of the interface that has this IPv4 address."""
    names = (name for _, name in socket.if_nameindex())
    return next((name for name in names if address_of(name) == address), None)
