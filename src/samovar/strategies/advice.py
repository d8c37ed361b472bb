"""Which strategy fits: one table, for the page that asks it and for `samovar doctor`; measured in learning.md."""

from dataclasses import dataclass

from samovar.core.machine import TransportFigures

FAST, SLOW = "shared memory, or a fast link", "a slow link"
EVEN, UNEVEN = "even", "uneven"
# A link is fast for a net whose exchange takes at most this share of a step.
FAST_SHARE = 0.1
_PROBE_BYTES = 4_000_000  # a million weights


@dataclass(frozen=True, slots=True)
class FittingStrategy:
    """A strategy for such a link and workers of such speeds; `words` say what it gives and costs."""

    link: str
    speeds: str
    flags: str
    exchanges: str
    words: str


_ROWS = (
    (FAST, EVEN, "sync --recipe auto", "every step", "one worker's result, up to rounding; all wait for the slowest"),
    (FAST, UNEVEN, "async-sgd", "every step of each worker", "does not wait for others; learns as one worker"),
    (SLOW, EVEN, "diloco", "every 16 steps", "learns as one worker; all wait for the slowest, once a period"),
    (
        SLOW,
        UNEVEN,
        "shm-easgd --sync-period 8",
        "every 8 steps",
        "does not wait for others; a long period costs accuracy",
    ),
)
ADVICE = tuple(FittingStrategy(link, speeds, f"--strategy {take}", *words) for link, speeds, take, *words in _ROWS)


def shortest_step_s(link: TransportFigures, num_bytes: int = _PROBE_BYTES) -> float:
    """A step that takes longer finds this link fast: a message there and one back, with a net of `num_bytes`."""
    exchange_s = 2 * (link.sleeping_latency_s + num_bytes / link.bandwidth_at(num_bytes))
    return exchange_s / FAST_SHARE
