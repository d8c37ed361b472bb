"""The quorum of an elastic job in the launcher that began it, and the doors of launchers on other hosts."""

import dataclasses
import secrets
import time
from contextlib import suppress
from functools import partial
from typing import Any

from samovar.core.clock import Deadline
from samovar.core.errors import InputError, SamovarError
from samovar.core.plain import from_plain, to_plain
from samovar.membership.quorum import Quorum, QuorumSize
from samovar.membership.quorum_door import OTHER_LANGUAGE, QuorumDoor
from samovar.membership.quorum_messages import Admission, Hello, Last, Refused, Reply
from samovar.membership.state_courier import Courier, StatePlace
from samovar.transports.keys import Key
from samovar.transports.links import HostLink, Inbox, link_to
from samovar.transports.secure import Address
from samovar.transports.tcp_listen import listen

# A launcher shows each second that it lives.
SILENCE_S = 10.0
_SEND_S = 2.0
_CONNECT_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Meeting:
    """Where launchers of other hosts reach the quorum, the job's key, and the name of this host."""

    address: str
    port: int
    key: Key
    host: str


class _FarHost:
    """The door on another host. `numbers` are its workers' numbers here."""

    def __init__(self, name: str, link: HostLink) -> None:
        self.name = name
        self.link = link
        self.inbox = Inbox({0: link}, SILENCE_S)
        self.numbers: dict[int, int] = {}

    def send(self, message: dict[str, Any]) -> bool:
        try:
            self.link.send(message, Deadline.after(_SEND_S))
        except SamovarError:  # the inbox will say that it is lost
            return False
        return True


class QuorumServer(QuorumDoor):
    """Serves the quorum of the elastic `job` until the end of its context; with a `meeting` to other hosts too.

    Raises InputError if another job has this name, or nobody can listen there.
    """

    def __init__(self, job: str, size: QuorumSize, meeting: Meeting | None = None) -> None:
        self._job = job
        self._host = "" if meeting is None else meeting.host
        self._quorum = Quorum(size, self._send)
        self._far: dict[int, _FarHost] = {}  # by the descriptor of its inbox
        self._far_workers: dict[int, tuple[_FarHost, int]] = {}
        self._place: StatePlace | None = None
        courier = None
        if meeting is not None:
            courier = Courier(listen(meeting.address, meeting.port), meeting.key, self._on_host)
        super().__init__(job, "", courier)

    @property
    def address(self) -> Address | None:
        """Where other hosts reach it, if they may."""
        return None if self._courier is None else self._courier.address

    @property
    def has_members(self) -> bool:
        return bool(self._quorum.members)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for far in self._far.values():
            far.inbox.close()

    def rank_ended(self, process_id: int) -> None:
        """If it had not come yet, nobody waits for it any more."""
        self.call(partial(self._note_ended, process_id))

    def _note_ended(self, process_id: int) -> None:
        if process_id not in self._came_from:
            self._quorum.founder_ended(time.monotonic())

    def _heard(self, number: int, content: dict[str, Any]) -> None:
        self._act(number, content, self._host)

    def _act(self, number: int, content: dict[str, Any], host: str) -> None:
        now_s = time.monotonic()
        match content.pop("kind"):
            case "hello" if self._courier is not None and not content.get("listens"):
                why = "it is on several hosts; join it with --master-addr, --master-port and --key-file, too"
                self._send(number, Refused(why, is_input=True))
            case "hello":
                content.pop("listens", None)
                self._quorum.came(number, from_plain(Hello, content | {"host": host}), now_s)
            case "state":
                self._place = from_plain(StatePlace, content["state"])
                self._quorum.gave(number, now_s)
            case "ready":
                steps, last = int(content["num_steps"]), Last(content["last"])
                self._quorum.ready(number, steps, last, now_s, _address(content), str(content["origin"]))
            case "busy":
                self._quorum.busy(number, now_s)
            case "vote":
                self._quorum.voted(number, bool(content["is_done"]), now_s, _address(content))

    def _gone(self, number: int) -> None:
        self._quorum.gone(number, time.monotonic())

    def _look(self) -> None:
        self._quorum.look(time.monotonic())

    def _send(self, number: int, reply: Reply) -> None:
        content: dict[str, Any] = {"kind": type(reply).__name__, **dataclasses.asdict(reply)}
        if isinstance(reply, Admission) and not reply.is_founder and self._place is not None:
            content["state"] = to_plain(self._place)
        if number in self._far_workers:
            far, its_number = self._far_workers[number]
            far.send({"is": "reply", "worker": its_number, "content": content})
        else:
            self._tell(number, content)

    def _on_host(self, link: HostLink, message: dict[str, Any]) -> None:
        """A launcher of another host has come, to the courier's thread."""
        if message.get("is") != "host" or message.get("job") != self._job:
            with suppress(SamovarError):
                link.send({"is": "refused", "why": f"the elastic job here is {self._job!r}"}, Deadline.after(_SEND_S))
            link.close()
            return
        self.call(partial(self._take_in, link, str(message.get("name"))))

    def _take_in(self, link: HostLink, name: str) -> None:
        if self._closing.is_set():
            link.close()
            return
        taken = {self._host, *(far.name for far in self._far.values())}
        far = _FarHost(f"{name}#{secrets.token_hex(2)}" if name in taken else name, link)
        self._far[far.inbox.fileno()] = far
        self._register(far.inbox.fileno(), lambda: self._hear_far(far))
        far.send({"is": "welcome"})

    def _hear_far(self, far: _FarHost) -> None:
        for _, message, _ in far.inbox.take():
            try:
                self._act_far(far, message)
            except OTHER_LANGUAGE:
                self._lose(far)
                return

    def _act_far(self, far: _FarHost, message: dict[str, Any]) -> None:
        what = message["is"]
        if what == "lost":
            self._lose(far)
            return
        its_number = int(message["worker"])
        if what == "worker":
            self._act(self._number_of(far, its_number), message["content"], far.name)
        elif (number := far.numbers.pop(its_number, None)) is not None:
            del self._far_workers[number]
            self._gone(number)

    def _number_of(self, far: _FarHost, its_number: int) -> int:
        if its_number not in far.numbers:
            self._num_came += 1
            far.numbers[its_number] = self._num_came
            self._far_workers[self._num_came] = far, its_number
        return far.numbers[its_number]

    def _lose(self, far: _FarHost) -> None:
        """The host, its launcher or its cable is gone, with all of its workers."""
        self._selector.unregister(far.inbox.fileno())
        del self._far[far.inbox.fileno()]
        far.inbox.close()
        for number in far.numbers.values():
            del self._far_workers[number]
        for number in far.numbers.values():
            self._gone(number)


def _address(content: dict[str, Any]) -> Address | None:
    found = content.get("address")
    return None if found is None else (str(found[0]), int(found[1]))


class QuorumRelay(QuorumDoor):
    """The door on a further host: it passes on what its workers and the quorum of `job` tell each other.

    Serves until the end of its context. Raises InputError if there is no such job at the `meeting`, or with another
    key, and DeadlineExceeded.
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
        except SamovarError as error:
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
