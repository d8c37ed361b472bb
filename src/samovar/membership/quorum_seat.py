"""A worker's connection to the quorum of an elastic job on its host."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, RankFailed, SamovarError
from samovar.membership.quorum_messages import Admission, Decision, Division, Go, Hello, Last
from samovar.membership.quorum_server import address_of
from samovar.membership.rounds import Given
from samovar.transports.unix_sockets import ConnectionEnded, LocalMessage, connect, receive, send

# The quorum gives up a worker after its limit, and needs a moment for that.
_MARGIN_S: Final = 10.0


class QuorumSeat:
    """See `samovar.membership.rounds.Seat`. `packed` makes a file in memory of a state, and `unpacked` a state of it.

    Raises InputError if this host has no such job, or the job trains something else. Raises RankFailed if this worker
    is given up or the job has ended, and DeadlineExceeded if the launcher does not answer.
    """

    def __init__(
        self,
        job: str,
        hello: Hello,
        packed: Callable[[Given], tuple[dict[str, Any], int]],
        unpacked: Callable[[Mapping[str, Any], int], Given],
    ) -> None:
        self._job = job
        self._hello = hello
        self._packed, self._unpacked = packed, unpacked
        self._segment = -1
        link = connect(address_of(job), self._deadline())
        if link is None:
            raise InputError(
                f"there is no elastic job {job!r} of this user on this host; start it by `samovar run --elastic {job}`"
            )
        self._link = link

    @property
    def segment(self) -> int:
        """The descriptor of the shared memory of the last Go. It stays this seat's."""
        return self._segment

    def enter(self) -> tuple[Admission, Given]:
        self._tell("hello", dataclasses.asdict(self._hello))
        message = self._answer("Admission")
        content = message.content
        state = content.pop("state", None)
        try:
            given = {} if state is None else self._unpacked(state, message.descriptors[0])
        finally:
            message.close()
        return Admission(**(content | {"division": Division(**content["division"])})), given

    def give(self, state: Given) -> None:
        content, descriptor = self._packed(state)
        try:
            self._tell("state", {"state": content}, (descriptor,))
        finally:
            os.close(descriptor)

    def ready(self, num_steps: int, last: Last) -> Go:
        self._tell("ready", {"num_steps": num_steps, "last": last})
        return self.go()

    def go(self) -> Go:
        message = self._answer("Go")
        self._keep_segment(message.descriptors[0])
        content = message.content
        return Go(**(content | {name: tuple(content[name]) for name in ("marks", "names", "gone")}))

    def vote(self, is_done: bool) -> Decision:
        self._tell("vote", {"is_done": is_done})
        content = self._answer("Decision").content
        division = content.pop("division")
        return Decision(**content, division=None if division is None else Division(**division))

    def busy(self, is_busy: bool) -> None:
        """Say that this worker begins or ends something else, for which others wait."""
        self._tell("busy", {"is_busy": is_busy})

    def close(self) -> None:
        """Leave at once. A second call does nothing."""
        self._link.close()
        self._keep_segment(-1)

    def _deadline(self) -> Deadline:
        return Deadline.after(self._hello.timeout_s + _MARGIN_S)

    def _keep_segment(self, descriptor: int) -> None:
        if self._segment >= 0:
            os.close(self._segment)
        self._segment = descriptor

    def _tell(self, kind: str, content: Mapping[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        try:
            send(self._link, {"kind": kind, **content}, self._deadline(), descriptors)
        except (ConnectionEnded, OSError) as error:
            self._raise_refusal(error)

    def _raise_refusal(self, error: Exception) -> None:
        """The launcher has hung up. It may have said why before."""
        self._answer("")
        raise AssertionError from error

    def _answer(self, kind: str) -> LocalMessage:
        """The next message of this kind. The launcher sends others while it waits for workers."""
        while True:
            try:
                message = receive(self._link, self._deadline())
            except (ConnectionEnded, OSError) as error:
                raise RankFailed(f"elastic job {self._job!r}: its launcher is gone; see its output") from error
            except DeadlineExceeded as error:
                raise DeadlineExceeded(f"elastic job {self._job!r}: its launcher does not answer") from error
            found = message.content.pop("kind")
            if found == kind:
                return message
            message.close()
            if found == "Refused":
                self._refused(message.content)
            if found != "StillWaiting":
                raise SamovarError(
                    f"elastic job {self._job!r}: its launcher says {found!r}, and not {kind!r}; do all run the same "
                    "version of Samovar?"
                )

    def _refused(self, content: Mapping[str, Any]) -> None:
        sentence = f"elastic job {self._job!r}: {content['why']}"
        raise InputError(sentence) if content["is_input"] else RankFailed(sentence)
