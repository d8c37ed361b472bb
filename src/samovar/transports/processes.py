"""The processes of other ranks on this host: whether each of them lives, and how it ended."""

import fcntl
import os
import select
import signal
import struct
from contextlib import suppress
from pathlib import Path

from samovar.core.clock import Deadline

# linux/pidfd.h: the status of a process that was waited for, from Linux 6.15 on.
_PIDFD_GET_INFO = 0xC040FF0B
_INFO_BYTES, _INFO_EXIT, _EXIT_CODE_OFFSET = 64, 1 << 3, 60
# Fields of /proc/PID/stat after the name.
_STATE, _START, _EXIT_CODE = 0, 19, 49
_ASK_AGAIN_S = 0.01


def own_mark() -> str:
    """This process for others of its host: its number, its start, and the namespace of such numbers."""
    return f"{os.getpid()}/{_fields(os.getpid())[_START]}/{_namespace()}"


def open_process(mark: str) -> "PeerProcess | None":
    """The process with this mark; None if this process cannot watch it."""
    number, start, namespace = mark.split("/")
    if namespace != str(_namespace()):
        return None
    process_id = int(number)
    try:
        descriptor = os.pidfd_open(process_id)
    except ProcessLookupError:
        return PeerProcess(process_id, None)
    except OSError:  # a sandbox may forbid it
        return None
    try:
        is_other = _fields(process_id)[_START] != start
    except OSError:
        is_other = True
    if is_other:
        os.close(descriptor)
    return PeerProcess(process_id, None if is_other else descriptor)


class PeerProcess:
    """Another process, which is not a child of this one. One without a descriptor ended before it could be opened."""

    def __init__(self, process_id: int, descriptor: int | None) -> None:
        self.process_id = process_id
        self._descriptor = descriptor

    def ended(self) -> bool:
        """Whether it has ended. Never waits."""
        if self._descriptor is None:
            return True
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(0))

    def how_ended(self, deadline: Deadline) -> str | None:
        """The end of a process that has ended, as text; None if the system does not tell others."""
        while (status := self._status()) is None and self._descriptor is not None and not deadline.passed():
            select.select([], [], [], _ASK_AGAIN_S)  # its parent is about to ask, and then the system tells others
        if status is None:
            return None
        code = os.waitstatus_to_exitcode(status)
        return f"ended with exit code {code}" if code >= 0 else f"was killed by signal {_named(-code)}"

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _status(self) -> int | None:
        if self._descriptor is None:
            return None
        info = bytearray(_INFO_BYTES)
        struct.pack_into("Q", info, 0, _INFO_EXIT)
        with suppress(OSError):
            fcntl.ioctl(self._descriptor, _PIDFD_GET_INFO, info)
            if struct.unpack_from("Q", info)[0] & _INFO_EXIT:
                return int(struct.unpack_from("i", info, _EXIT_CODE_OFFSET)[0])
        with suppress(OSError):
            fields = _fields(self.process_id)  # nobody else has its number until its parent has asked
            if fields[_STATE] == "Z":
                return int(fields[_EXIT_CODE])
        return None


def _named(number: int) -> str:
    with suppress(ValueError):
        return f"{number} ({signal.Signals(number).name})"
    return str(number)


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _fields(process_id: int) -> list[str]:
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
