"""The door of an elastic job on a further host: it passes on what its workers and the quorum tell each other."""

from typing import Any

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, InputError, SamovarError
from samovar.membership.quorum_door import QuorumDoor
from samovar.membership.quorum_server import SILENCE_S, Meeting
from samovar.membership.state_courier import Courier
from samovar.transports.links import Inbox, link_to
from samovar.transports.tcp_listen import listen

_CONNECT_S = 60.0


class QuorumRelay(QuorumDoor):
    """Connects workers of this host with the quorum of the elastic `job`, until the end of its context.

    Raises InputError if there is no such job at the `meeting`, or with another key, and DeadlineExceeded.
    """

    def __init__(self, job: str, door: str, meeting: Meeting) -> None:
        self._who = f"elastic job {job!r}"
        self._link = link_to((meeting.address, meeting.port), meeting.key, self._who, Deadline.after(_CONNECT_S))
        self.address = self._link.own_address
        self._lost_why = ""  # once the quorum is out of reach
        try:
            self._greet(job, meeting.host)
            courier = Courier(listen(self.address), meeting.key, lambda link, _message: link.close())
            super().__init__(job, door, courier)
        except BaseException:
            self._link.close()
            raise
        self._inbox = Inbox({0: self._link}, SILENCE_S)
        self._register(self._inbox.fileno(), self._hear_quorum)

    def rank_ended(self, _process_id: int) -> None:
        """Do nothing: nobody waits for a worker that joins."""

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._inbox.close()

    def _greet(self, job: str, host: str) -> None:
        self._link.send({"is": "host", "job": job, "name": host}, Deadline.after(SILENCE_S))
        answer, _ = self._link.receive(Deadline.after(SILENCE_S))
        if answer.get("is") != "welcome":
            raise InputError(
                f"--join {job}: {answer.get('why', 'no elastic job')}, at {self._link.peer}; see its output"
            )

    def _heard(self, number: int, content: dict[str, Any]) -> None:
        if self._lost_why:
            self._refuse(number)
        self._pass_on({"is": "worker", "worker": number, "content": content})

    def _gone(self, number: int) -> None:
        self._pass_on({"is": "gone", "worker": number})

    def _look(self) -> None:
        """Do nothing: the quorum looks."""

    def _pass_on(self, message: dict[str, Any]) -> None:
        if self._lost_why:
            return
        try:
            self._link.send(message, Deadline.after(SILENCE_S))
        except (SamovarError, DeadlineExceeded) as error:
            self._lose(str(error))

    def _hear_quorum(self) -> None:
        for _, message, _ in self._inbox.take():
            if message["is"] == "reply":
                self._tell(int(message["worker"]), message["content"])
            elif message["is"] == "lost":
                self._lose(str(message["why"]))

    def _lose(self, why: str) -> None:
        """Nobody tells these workers any more when to exchange."""
        self._lost_why = why
        for number in list(self._connections):
            self._refuse(number)

    def _refuse(self, number: int) -> None:
        sentence = f"the host that began it is lost: {self._lost_why}; the others continue without this host"
        self._tell(number, {"kind": "Refused", "why": sentence, "is_input": False})
