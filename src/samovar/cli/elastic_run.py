"""The elastic job of `samovar run`: the door of this host, and the ends of its ranks."""

import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from samovar.core.errors import InputError
from samovar.launch.identity import AUTO, ElasticJob
from samovar.launch.script import ScriptEnd, require_port
from samovar.membership.quorum import QuorumSize
from samovar.membership.quorum_door import QuorumDoor, address_of
from samovar.membership.quorum_server import Meeting, QuorumRelay, QuorumServer
from samovar.report.script_output import end_sentence
from samovar.transports.keys import make_key, read_key
from samovar.transports.rendezvous import leads_here_alone


@dataclass(frozen=True, slots=True)
class ElasticFlags:
    """The flags of `samovar run` for elastic jobs. With `port` the job is on several hosts, which meet there."""

    elastic: str | None
    join: str | None
    min_workers: int | None
    max_workers: int | None
    num_ranks: int
    address: str | None
    port: int | None
    key_file: Path | None

    @property
    def name(self) -> str | None:
        return self.elastic if self.elastic is not None else self.join

    def require_fitting(self, *, nodes: int, node_rank: int | None, keep_going: bool, transport: str) -> bool:
        """Whether the job is elastic. Raises InputError if flags do not fit together."""
        limits = {"--min-workers": self.min_workers, "--max-workers": self.max_workers}
        given = [flag for flag, value in limits.items() if value is not None]
        if self.elastic is None and given:
            raise InputError(f"{given[0]} is for a job that begins: give it together with --elastic NAME")
        if self.elastic is not None and self.join is not None:
            raise InputError("--elastic begins a job, and --join comes to one; give one of them")
        if self.name is None:
            return False
        flag = "--join" if self.elastic is None else "--elastic"
        if keep_going:
            raise InputError(
                "--keep-going is for strategies at a center. An elastic job continues anyway; leave it out"
            )
        if nodes != 1 or node_rank is not None:
            raise InputError(
                f"{flag}: hosts of an elastic job come and go, so leave --nodes and --node-rank out. Begin it on one "
                "host with --master-addr, --master-port and --key-file, and give the same with --join on the others"
            )
        if transport != AUTO:
            raise InputError(f"{flag}: exchanges in shared memory, and over tcp between hosts; leave --transport out")
        require_port(self.port)
        place = {"--master-addr": self.address, "--master-port": self.port}
        missing = [name for name, value in place.items() if value is None]
        if len(missing) == 1 or (not missing and self.key_file is None):
            raise InputError(
                f"{flag}: an elastic job on several hosts needs {', '.join(missing or ['--key-file'])} too; the same "
                "on every host"
            )
        return True

    def meeting(self) -> Meeting | None:
        """Where hosts meet; None for a job on this one alone. The host that begins makes the key if it is missing."""
        if self.address is None or self.port is None or self.key_file is None:
            return None
        if self.elastic is not None:
            make_key(self.key_file)
        return Meeting(self.address, self.port, read_key(self.key_file), socket.gethostname())

    def size(self) -> QuorumSize:
        most = {} if self.max_workers is None else {"max_workers": self.max_workers}
        return QuorumSize(self.num_ranks, 1 if self.min_workers is None else self.min_workers, **most)


class ElasticRun:
    """A job that this launcher begins or joins. Use it as a context.

    It is the launch's `Keeper`; `say` gets a sentence about each rank that fails and does not come back.
    """

    files: tuple[int, ...] = ()

    def __init__(self, flags: ElasticFlags, say: Callable[[str], None]) -> None:
        assert flags.name is not None
        address_of(flags.name)
        if flags.elastic is not None:
            flags.size()
        self._name, self._flags, self._say = flags.name, flags, say
        self._closing = ExitStack()
        self._door: QuorumDoor | None = None
        self._job = ElasticJob(self._name, 0, joins=flags.elastic is None)

    @property
    def variables(self) -> Mapping[str, str]:
        return self._job.variables

    def is_filled(self) -> bool:
        """Whether others continue without a rank that failed: always."""
        return True

    def ended(self, end: ScriptEnd) -> None:
        """A rank has ended for good. If it had not come yet, the first round does not wait for it."""
        if self._door is not None:
            self._door.rank_ended(end.process_id)
        if end.return_code:
            self._say(f"samovar: warning: {end_sentence(end, [], socket.gethostname(), ())}")

    def linger(self) -> None:
        """Keep the job for workers that joined it, where those of this command have ended."""
        door = self._door
        if isinstance(door, QuorumServer) and door.has_members:
            self._say("samovar: the workers of this command have ended; it waits for those that joined the job")
            while door.has_members:
                time.sleep(0.2)

    def __enter__(self) -> Self:
        meeting = self._flags.meeting()
        if self._flags.elastic is not None:
            self._begin(meeting)
        elif meeting is not None:
            relay = QuorumRelay(self._name, str(os.getpid()), meeting)
            self._door = self._closing.enter_context(relay)
            self._job = ElasticJob(self._name, 0, True, str(os.getpid()), relay.address)
        return self

    def __exit__(self, *_error: object) -> None:
        self._closing.close()

    def _begin(self, meeting: Meeting | None) -> None:
        try:
            server = QuorumServer(self._name, self._flags.size(), meeting)
        except InputError as error:
            raise InputError(
                f"--elastic {self._name}: {error}; does such a job run already? Choose another name, or "
                f"--join {self._name}"
            ) from error
        self._door = self._closing.enter_context(server)
        if meeting is not None and server.address is not None:
            if leads_here_alone(meeting.address, server.address[0]):
                self._closing.close()
                why = f"leads to this host alone ({server.address[0]}); give an address that the others reach"
                raise InputError(f"--master-addr {meeting.address}: {why}")
            self._job = ElasticJob(self._name, 0, False, "", server.address[0])
            flags = f"--master-addr {meeting.address} --master-port {meeting.port} --key-file {self._flags.key_file}"
            self._say(f"samovar: other hosts join by: samovar run --join {self._name} {flags} SCRIPT")
