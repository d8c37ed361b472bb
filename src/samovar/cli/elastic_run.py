"""The elastic job of `samovar run`: its quorum, if this launcher serves it, and the ends of its ranks."""

import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Self

from samovar.core.errors import InputError
from samovar.launch.script import Hosts, ScriptEnd
from samovar.membership.quorum import QuorumSize
from samovar.membership.quorum_server import QuorumServer, address_of
from samovar.report.script_output import end_sentence


class ElasticRun:
    """A job that this launcher begins, with the quorum's `size`, or joins (None). Use it as a context.

    It is the launch's `Keeper`; `say` gets a sentence about each rank that fails and does not come back.
    """

    files: tuple[int, ...] = ()

    def __init__(self, job: str, size: QuorumSize | None, say: Callable[[str], None]) -> None:
        self._job = job
        self._size = size
        self._say = say
        self._closing = ExitStack()
        self._server: QuorumServer | None = None
        address_of(job)

    @classmethod
    def of(
        cls,
        elastic: str | None,
        join: str | None,
        min_workers: int | None,
        max_workers: int | None,
        num_ranks: int,
        hosts: Hosts | None,
        say: Callable[[str], None],
        *,
        keep_going: bool,
    ) -> Self | None:
        """The job of these flags; None without any. Raises InputError if they do not fit together."""
        limits = {"--min-workers": min_workers, "--max-workers": max_workers}
        given = {"--elastic": elastic, "--join": join, **limits}
        flags = [flag for flag, value in given.items() if value is not None]
        if elastic is None and (given_limits := [flag for flag in flags if flag in limits]):
            raise InputError(f"{given_limits[0]} is for a job that begins: give it together with --elastic NAME")
        if elastic is not None and join is not None:
            raise InputError("--elastic begins a job, and --join comes to one; give one of them")
        if flags and keep_going:
            raise InputError(
                "--keep-going is for strategies at a center. An elastic job continues anyway; leave it out"
            )
        if flags and hosts is not None:
            raise InputError(f"{flags[0]}: an elastic job is on one host; leave --nodes out")
        if elastic is not None:
            most = {} if max_workers is None else {"max_workers": max_workers}
            return cls(elastic, QuorumSize(num_ranks, 1 if min_workers is None else min_workers, **most), say)
        return None if join is None else cls(join, None, say)

    @property
    def variables(self) -> Mapping[str, str]:
        return {"SAMOVAR_ELASTIC": self._job} | ({"SAMOVAR_ELASTIC_JOINS": "1"} if self._size is None else {})

    def is_filled(self) -> bool:
        """Whether others continue without a rank that failed: always."""
        return True

    def ended(self, end: ScriptEnd) -> None:
        """A rank has ended for good. If it had not come yet, the first round does not wait for it."""
        if self._server is not None:
            self._server.rank_ended(end.process_id)
        if end.return_code:
            self._say(f"samovar: warning: {end_sentence(end, [], socket.gethostname(), ())}; the others continue")

    def __enter__(self) -> Self:
        if self._size is not None:
            try:
                self._server = self._closing.enter_context(QuorumServer(self._job, self._size))
            except InputError as error:
                raise InputError(
                    f"--elastic {self._job}: {error}; does such a job run already? Choose another name, or "
                    f"--join {self._job}"
                ) from error
        return self

    def __exit__(self, *_error: object) -> None:
        self._closing.close()
