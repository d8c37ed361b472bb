"""This host's addresses and network interfaces."""

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
_REQUEST_BYTES = 256
_ADDRESS = slice(20, 24)  # of struct ifreq: 16 bytes of name, then family, port, address
_ANY_PORT = 9


def addresses_towards(address: str) -> tuple[str, str]:
    """The address from which this host reaches `address`, and what that is as a number; nothing is sent.

    Raises OSError where there is no such name or no route, UnicodeError where it can be no name.
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
