"""A box over loopback, authenticated and encrypted, against gloo's send and receive, which are neither.

Sides take turns, in a random order for each round. A rate is that of the center's bytes, from the member's call until
the box's last word. The ratio of the CPU time of both processes is given, too.
"""

import tempfile
from functools import partial
from pathlib import Path

from figures import Figure, compare_both
from ranks import WARM_UP_BLOCKS, Ranks, Rates, Spent, Turn, take_turns

from samovar.transports.keys import make_key

SIZES = (64_000_000, 244_000_000)
# Side, gloo's side, least ratio; an exchange moves its bytes both ways, and counts them once.
COMPARED = (
    ("channel", "gloo send", None),
    ("read", "gloo recv", 0.5),
    ("accumulate", "gloo send", 0.5),
    ("exchange", "gloo send", None),
)
NUM_ROUNDS = 15


def run(short: bool) -> list[Figure]:
    return [
        figure for size in SIZES for figure in measure(size // 10 if short else size, 3 if short else NUM_ROUNDS, short)
    ]


def measure(num_bytes: int, num_rounds: int, short: bool) -> list[Figure]:
    sides = sorted({side for pair in COMPARED for side in pair[:2]})
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        make_key(Path(folder) / "key.pem")
        shared = {"meeting": f"{folder}/meeting", "key": f"{folder}/key.pem", "num_elements": num_bytes // 4}
        with Ranks("remote_rank.py", [{**shared, "rank": rank} for rank in range(2)]) as both:
            both.answers()
            found = take_turns({side: Turn(partial(spent, both, side), num_bytes) for side in sides}, num_rounds)
            verify(both.last_answers()[1], WARM_UP_BLOCKS + num_rounds)
    rates = {side: Rates(*([rate / 1e9 for rate in each] for each in (of.wall, of.cpu))) for side, of in found.items()}
    return [
        compare_both(
            f"{ours}, {num_bytes / 1e6:.0f} MB / {theirs}", rates[ours], rates[theirs], None if short else bar, "GB/s"
        )
        for ours, theirs, bar in COMPARED
    ]


def spent(both: Ranks, side: str) -> Spent:
    """Seconds from the member's call to its answer, and the CPU seconds of both."""
    (_, of_box_s), (wall_s, of_member_s) = both.ask(side)
    return wall_s, of_box_s + of_member_s


def verify(found: dict[str, list[float]], num_updates: int) -> None:
    """Every accumulate added ones once, every exchange (at rate 0) counted once."""
    if found != {"versions": [2 * num_updates], "values": [float(num_updates)]}:
        raise SystemExit(f"the center holds {found} after {num_updates} rounds")
