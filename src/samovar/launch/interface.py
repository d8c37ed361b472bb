"""By which address and network interface this host reaches another one."""

import fcntl
import socket
import struct
from contextlib import suppress

_SIOCGIFADDR = 0x8915
_ADDRESS_OFFSET = 20  # of struct ifreq: 16 bytes of name, family, port


def describe_route(address: str, port: int, is_own: bool) -> str:
    """Words for where the ranks meet and how this host gets there; nothing is sent.

    `is_own`: the address should be one of this host's own.
    """
    meeting = f"they meet at {address} port {port}"
    try:
        family, _, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # of a datagram socket: only asks the routing table
            own = str(probe.getsockname()[0])
    except (OSError, UnicodeError) as error:  # a name may also be none at all
        return f"{meeting}, which cannot be reached from here now: {error}"
    if is_own and own != target[0]:
        return f"{meeting}, which is not this host's own address (that towards it is {own})"
    return f"{meeting}, reached from {own}{_named(own)}"


def _named(address: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an IPv4 address
                request = struct.pack("256s", name.encode())
                answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[_ADDRESS_OFFSET : _ADDRESS_OFFSET + 4]) == address:
                    return f" (interface {name})"
    return ""
