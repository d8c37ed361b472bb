"""Tries, as the user given, what its standard input names; says what came of each. Imports nothing of Samovar.

    second_user_program.py UID < [["open", PATH, FLAGS], ...]

A try is `refused`, or a word of what was got.
"""

import ctypes
import json
import os
import socket
import sys

_PIDFD_GETFD = 438  # a system call without a name in Python
_WAIT_S = 20.0


def opened(path: str, flags: int) -> str:
    os.close(os.open(path, flags, 0o600))
    return "opened"


def listed(path: str) -> str:
    return f"{len(os.listdir(path))} names"  # noqa: PTH208


def duplicated(process_id: int, number: int) -> str:
    """The other process's descriptor `number`, as a debugger takes it."""
    process = os.pidfd_open(process_id)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        descriptor = libc.syscall(_PIDFD_GETFD, process, number, 0)
        if descriptor < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
        os.close(descriptor)
        return "duplicated"
    finally:
        os.close(process)


def signalled(process_id: int) -> str:
    os.kill(process_id, 0)
    return "signalled"


def asked(address: str, kind: int, message: str) -> str:
    """The data that the abstract socket `address` gives; a closed socket counts as a refusal."""
    with socket.socket(socket.AF_UNIX, kind) as connection:
        connection.settimeout(_WAIT_S)
        connection.connect(f"\0{address}")
        if message:
            connection.send(message.encode())
        answer, descriptors, _flags, _address = socket.recv_fds(connection, 60_000, 4)
    for descriptor in descriptors:
        os.close(descriptor)
    return f"{len(answer)} bytes, {len(descriptors)} descriptors" if answer else "refused"


TRIES = {"open": opened, "list": listed, "duplicate": duplicated, "signal": signalled, "ask": asked}


def outcome(kind: str, arguments: list[object]) -> str:
    try:
        return TRIES[kind](*arguments)  # type: ignore[operator]
    except (PermissionError, ConnectionError):
        return "refused"
    except OSError as error:
        return f"failed: {error}"


def main() -> None:
    user = int(sys.argv[1])
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    print(json.dumps([outcome(kind, arguments) for kind, *arguments in json.load(sys.stdin)]))


main()
