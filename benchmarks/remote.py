"""A box over loopback, authenticated and encrypted, against gloo's send and receive, which are neither.

Sides take turns, in an order drawn anew for each round; a rate is that of the center's bytes, from the member's call
until the box's last word. Beside it stands that of the CPU time of both processes.
"""

import json
import random
import select
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import Figure, compare_both
from ranks import Rates

from samovar.transports.keys import make_key

RANK_PROGRAM = Path(__file__).with_name("remote_rank.py")
SIZES = (64_000_000, 244_000_000)
# Side, gloo's side, least ratio; an exchange moves its bytes both ways, and counts them once.
SIDES = (("channel", "gloo send", None), ("read", "gloo recv", 0.5), ("accumulate", "gloo send", 0.5))
EXCHANGE = ("exchange", "gloo send", None)
WARM_UP_ROUNDS, NUM_ROUNDS = 2, 15
TIMEOUT_S = 120.0

Process = subprocess.Popen[str]


def run(short: bool) -> list[Figure]:
    return [figure for size in SIZES for figure in measure(size // 10 if short else size, 3 if short else NUM_ROUNDS)]


def measure(num_bytes: int, num_rounds: int) -> list[Figure]:
    compared = (*SIDES, EXCHANGE)
    sides = sorted({side for pair in compared for side in pair[:2]})
    rates = {side: Rates([], []) for side in sides}
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        box, member = started(Path(folder), num_bytes)
        try:
            for number in range(WARM_UP_ROUNDS + num_rounds):
                for side in random.Random(number).sample(sides, len(sides)):
                    wall_s, cpu_s = seconds(box, member, side)
                    rates[side].wall.append(num_bytes / wall_s / 1e9)
                    rates[side].cpu.append(num_bytes / cpu_s / 1e9)
            verify(member, WARM_UP_ROUNDS + num_rounds)
            ended(box, member)
        finally:
            for process in (box, member):
                process.kill()
                process.wait()
                process.stdout.close()
    warm = {side: Rates(each.wall[WARM_UP_ROUNDS:], each.cpu[WARM_UP_ROUNDS:]) for side, each in rates.items()}
    return [
        compare_both(f"{ours}, {num_bytes / 1e6:.0f} MB / {theirs}", warm[ours], warm[theirs], bar, "GB/s")
        for ours, theirs, bar in compared
    ]


def started(folder: Path, num_bytes: int) -> tuple[Process, Process]:
    make_key(folder / "key.pem")
    job = {"meeting": f"file://{folder}/meeting", "key": str(folder / "key.pem"), "num_elements": num_bytes // 4}
    box, member = (
        subprocess.Popen(
            [sys.executable, str(RANK_PROGRAM), json.dumps({**job, "rank": rank})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    )
    tell(member, json.dumps(answer(box)))
    answer(member)
    return box, member


def seconds(box: Process, member: Process, side: str) -> tuple[float, float]:
    """From the member's call to its answer, and what both computed."""
    both = (box, member)
    for process in both:
        tell(process, side)
    wall_s = float(answer(member))
    for process in both:
        tell(process, "and")
    return wall_s, sum(float(answer(process)) for process in both)


def verify(member: Process, num_updates: int) -> None:
    """Every accumulate added ones once, every exchange (at rate 0) counted once."""
    member.stdin.close()
    found = answer(member)
    if found != {"versions": [2 * num_updates], "values": [float(num_updates)]}:
        raise SystemExit(f"the center holds {found} after {num_updates} rounds")


def ended(box: Process, member: Process) -> None:
    box.stdin.close()
    if box.wait(TIMEOUT_S) or member.wait(TIMEOUT_S):
        raise SystemExit("a process of the benchmark failed; its error stands above")


def tell(process: Process, line: str) -> None:
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def answer(process: Process):  # type: ignore[no-untyped-def]
    line = process.stdout.readline() if select.select([process.stdout], [], [], TIMEOUT_S)[0] else ""
    if not line:
        raise SystemExit("a process of the benchmark failed; its error stands above")
    return json.loads(line)
