"""The messages between the workers of an elastic job and its quorum; see `samovar.membership.quorum`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from samovar.transports.secure import Address


class Last(StrEnum):
    """Whether an exchange is a worker's last one: it leaves the others, or all end together."""

    NO = "no"
    LEAVE = "leave"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker that comes. `place` is its number at its launcher, `mark` its process (see `transports.processes`).

    It `joins` unless the first round waits for it. `job` stands for all that must be equal: model and settings.
    It waits at most `timeout_s` for others. `host` is "" in a job on one host.
    """

    place: int
    mark: str
    job: str
    timeout_s: float
    cores: tuple[int, ...] = ()
    joins: bool = False
    host: str = ""


@dataclass(frozen=True, slots=True)
class Division:
    """A worker's rank among the workers of a round. It divides data, and is settled before the round begins.

    `version` counts how often these workers were others than in the round before.
    """

    round: int
    rank: int
    world_size: int
    version: int = 0


@dataclass(frozen=True, slots=True)
class Admission:
    """The worker is in. It takes the state that comes with this; the founder has none to take, and `gives` its own.

    It stood at the door for `num_rounds_waited`.
    """

    division: Division
    max_workers: int
    num_rounds_waited: int = 0
    is_founder: bool = False
    gives: bool = False


@dataclass(frozen=True, slots=True)
class Go:
    """All have come: exchange now, as `rank` of the ranks with these `marks` and `hosts`.

    A new `generation` needs new windows; between hosts each rank listens at one of the `addresses`. `ends` says that
    all are at their last exchange. Without `exchanges` nobody has stepped since the last one, and this call is the end.
    `gone` are workers that were lost since.
    """

    generation: int
    rank: int
    marks: tuple[str, ...]
    oversubscribed: bool
    ends: bool = False
    exchanges: bool = True
    gone: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    addresses: tuple[Address | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Lost:
    """During an exchange: `rank` of the last Go, named `who`, is lost, and the exchange will be repeated without it."""

    rank: int
    who: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether the exchange counts. If not, a `Go` for the next attempt follows.

    `division` is that of the next round, None if this worker has none. It `gives` its state to those that come.
    """

    is_committed: bool
    division: Division | None = None
    gives: bool = False


@dataclass(frozen=True, slots=True)
class StillWaiting:
    """Nothing new: the quorum lives, and others are on their way."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The worker is out, and `why`. Its own input is the cause, or not."""

    why: str
    is_input: bool = False


Reply: TypeAlias = Admission | Go | Lost | Decision | StillWaiting | Refused
