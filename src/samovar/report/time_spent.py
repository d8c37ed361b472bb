"""Where a run's time went: shares of the step, a rank that is slower than the others, and what to change."""

from collections import deque
from dataclasses import dataclass
from statistics import median

KINDS = ("data", "forward", "backward", "exchange", "update")
_WINDOW_STEPS = 10
_MOST_OF_WINDOW = 8
_LATE_SHARE = 0.1  # of a step: less is noise
_LATE_LEAST_S = 1e-3
_INPUT_SHARE, _COMMUNICATION_SHARE, _STRAGGLER_SHARE = 0.15, 0.15, 0.1


@dataclass(frozen=True, slots=True)
class Arrival:
    """The rank that came last to an exchange, how long after the others, and the length of the step."""

    rank: int
    late_s: float
    step_s: float


class StragglerWatch:
    """Names a rank for which the others wait in most of the last steps; again only when it changes."""

    def __init__(self) -> None:
        self._recent: deque[Arrival] = deque(maxlen=_WINDOW_STEPS)
        self._named: int | None = None

    def take(self, arrival: Arrival) -> str | None:
        """A sentence, if there is news."""
        self._recent.append(arrival)
        own = [one for one in self._recent if one.rank == arrival.rank]
        if len(own) < _MOST_OF_WINDOW or arrival.rank == self._named:
            return None
        late_s, step_s = median(one.late_s for one in own), median(one.step_s for one in own)
        if late_s < max(_LATE_LEAST_S, _LATE_SHARE * step_s):
            return None
        self._named = arrival.rank
        return (
            f"rank {arrival.rank} is slower than the others, which wait for it {late_s * 1e3:.3g} ms of a step of "
            f"{step_s * 1e3:.3g} ms; see what else runs on its cpus"
        )


class TimeSpent:
    """Adds up the seconds of a run's steps by kind, and the waits of others for each rank.

    `remedy` is the advice if exchanges take long.
    """

    def __init__(self, remedy: str) -> None:
        self._remedy = remedy
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self._late_s: dict[int, float] = {}

    def add(self, seconds: dict[str, float], arrival: Arrival | None) -> None:
        """One step; `seconds` by kind."""
        for kind in KINDS:
            self._seconds[kind] += seconds[kind]
        if arrival is not None:
            self._late_s[arrival.rank] = self._late_s.get(arrival.rank, 0.0) + arrival.late_s

    def verdict(self) -> str | None:
        """Shares, the bottleneck, and advice; None without any step."""
        total_s = sum(self._seconds.values())
        if total_s <= 0.0:
            return None
        shares = {kind: seconds / total_s for kind, seconds in self._seconds.items()}
        shown = ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items())
        return f"where the time went: {shown}: {self._bound(shares, total_s)}"

    def _bound(self, shares: dict[str, float], total_s: float) -> str:
        rank = max(self._late_s, key=lambda rank: self._late_s[rank], default=None)
        if shares["data"] > _INPUT_SHARE:
            return "input-bound; try --hold-data, bring the data to a faster disk, or give reading a core"
        if rank is not None and self._late_s[rank] > _STRAGGLER_SHARE * total_s:
            share = self._late_s[rank] / total_s
            return f"straggler-bound, the others wait {share:.0%} of the time for rank {rank}; see its cpus"
        if shares["exchange"] > _COMMUNICATION_SHARE:
            return f"communication-bound; try {self._remedy}"
        return "compute-bound; more cores, or --precision bf16 where the CPU has it, make it faster"
