"""The other ranks of a host: whether each of them lives, and how it ended.

A wait for one that has ended fails at once. A rank that fails writes its last words into a window before it ends. A
rank that is killed says nothing, but the others hold a descriptor of its process.
"""

import atexit
import fcntl
import gc
import os
import select
import signal
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from types import TracebackType

import numpy as np

from samovar.core.clock import Deadline
from samovar.transports.base import Window

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


WORDS_BYTES = 1024
_KIND_SHIFT = 32
_TEXT_OFFSET = 8
_STATUS_S = 0.1
_BEFORE = "before its work was done"


class Word(IntEnum):
    """The kind of a rank's last word. The first one counts."""

    NONE = 0
    FAILED = 1  # an exception ends it; the text is its class and first line
    GAVE_UP = 2  # it waited for a rank that failed, here or elsewhere; the text is the sentence about that rank
    LEFT = 3  # it has closed its part in the job, and notifies no rank any more


class Peers:
    """This rank and the others of its host. `window` holds their last words, WORDS_BYTES each.

    `processes` are those that this rank can watch, by their place on the host. `names` are the ranks' names in errors.
    """

    def __init__(self, window: Window, own: int, names: Sequence[str], processes: Mapping[int, PeerProcess]) -> None:
        self._window = window
        self._own = own
        self._names = names
        self._processes = processes
        self._process_id = os.getpid()
        self._has_spoken = False
        self._earlier_hook = sys.excepthook
        self._hook = self._note_exception
        sys.excepthook = self._hook

    def has_ended(self, peer: int) -> bool:
        """Whether a peer notifies no rank any more. Never waits."""
        process = self._processes.get(peer)
        return self._word_of(peer)[0] is not Word.NONE or (process is not None and process.ended())

    def give_up(self, peer: int, *, tells: bool = True) -> str:
        """This rank's error if a peer has ended. It `tells` those that wait for this rank that it gives up."""
        sentence = self._how_ended(peer)
        if tells:
            self.tell_why(sentence)
            _end_soon()
        return f"{self._names[self._own]}: {sentence}"

    def tell_why(self, sentence: str) -> None:
        """Tell those that wait for this rank why it gives up."""
        self._speak(Word.GAVE_UP, sentence)

    def _how_ended(self, peer: int) -> str:
        """A sentence about a peer that has ended, without this rank's name."""
        kind, text = self._word_of(peer)
        process = self._processes.get(peer)
        number = "" if process is None else f" (process {process.process_id})"
        who = f"{self._names[peer]}{number}"
        if kind is Word.GAVE_UP:
            return text
        if kind is Word.FAILED:
            return f"{who} ended with {text}; see its log"
        end = process.how_ended(Deadline.after(_STATUS_S)) if process is not None and process.ended() else None
        if kind is Word.LEFT:
            return f"{who} {end or 'left'} {_BEFORE}; did its loop end early, without finish()? See its log"
        return f"{who} {end or 'is gone (killed, or ended by os._exit)'} {_BEFORE}; see its log"

    def leave(self) -> None:
        """Say that this rank notifies no rank any more. A second call does nothing."""
        self._speak(Word.LEFT, "")
        if sys.excepthook == self._hook:
            sys.excepthook = self._earlier_hook

    def _note_exception(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not (hasattr(sys, "ps1") or sys.flags.interactive):  # there the process continues
            first_line = next(iter(str(error).splitlines()), "")
            self._speak(Word.FAILED, f"{kind.__name__}: {first_line}" if first_line else kind.__name__)
            _end_soon()
        self._earlier_hook(kind, error, trace)

    def _speak(self, kind: Word, text: str) -> None:
        if self._has_spoken or os.getpid() != self._process_id:  # a forked child is not the rank
            return
        self._has_spoken = True
        data = np.frombuffer(text.encode(errors="replace")[: WORDS_BYTES - _TEXT_OFFSET], np.uint8)
        self._window.local[_TEXT_OFFSET : _TEXT_OFFSET + len(data)] = data
        self._window.fetch_add(self._own, 0, (kind << _KIND_SHIFT) | len(data))

    def _word_of(self, peer: int) -> tuple[Word, str]:
        word = self._window.fetch_add(peer, 0, 0)
        text = np.empty(word & ((1 << _KIND_SHIFT) - 1), np.uint8)
        self._window.get(peer, _TEXT_OFFSET, text)
        return Word(word >> _KIND_SHIFT), text.tobytes().decode(errors="replace")


def _end_soon() -> None:
    """Let this failed process end soon: collections among torch's objects take most of an interpreter's end."""
    atexit.register(gc.freeze)


class NoPeers:
    """The others are out of reach: every wait for one of them fails with `sentence`."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    def has_ended(self, _peer: int) -> bool:
        return True

    def give_up(self, _peer: int, **_tells: bool) -> str:
        return self._sentence

    def leave(self) -> None:
        """Nobody listens."""
