"""One rank of a job over several hosts: `rank_program.py WHAT`, told who it is by torchrun's variables.

exact     collectives on whole numbers, checked here against NumPy; prints the hash of all results
traffic   waits for a line, exchanges, prints what it sent to other hosts, waits for a line, ...
endless   all-reduces one bucket after the other until one fails
"""

import hashlib
import json
import os
import sys
from typing import Any

import numpy as np

from samovar import _native
from samovar.api.connect import Joined, join_group
from samovar.collectives.encoded import CODECS, Codec
from samovar.collectives.engine import PlannedCollectives
from samovar.core.clock import Deadline
from samovar.core.errors import SamovarError
from samovar.transports.base import Region

OPERATION_TIMEOUT_S = float(os.environ.get("OPERATION_TIMEOUT_S", "60"))
JOIN_TIMEOUT_S = float(os.environ.get("JOIN_TIMEOUT_S", "60"))
SIZES = (1, 7, 1000, 300_001)
TRAFFIC_ELEMENTS = (1, 1001, 262_144, 1_000_003)


def main() -> None:
    _native.die_with_parent()
    try:
        joined = join_group(JOIN_TIMEOUT_S)
        {"exact": exact, "endless": endless}[sys.argv[1]](joined)
    except SamovarError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def deadline() -> Deadline:
    return Deadline.after(OPERATION_TIMEOUT_S)


def say(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def region(joined: Joined, name: str, count: int, dtype: type[np.generic] = np.float32) -> Region:
    opened = joined.collectives.region(name, count * np.dtype(dtype).itemsize)
    return Region.of(opened.window, opened.offset, count, dtype)


def numbers(rank: int, count: int, run: int) -> np.ndarray:
    """Whole numbers whose sums are exact in float32."""
    return np.random.default_rng([rank, count, run]).integers(-9999, 9999, count)


def exact(joined: Joined) -> None:
    collectives, rank, ranks = joined.collectives, joined.group.rank, range(joined.group.world_size)
    digest = hashlib.sha256()
    for dtype in (np.float32, np.float64):
        for count in SIZES:
            buffer = region(joined, f"{count}", count, dtype)
            reduce = collectives.all_reduce(f"all-reduce of {count}", buffer)
            for run in range(3):
                buffer.array[:] = numbers(rank, count, run)
                reduce.run(deadline())
                assert np.array_equal(buffer.array, sum(numbers(peer, count, run) for peer in ranks)), (dtype, count)
            broadcast = collectives.broadcast(f"broadcast of {count}", buffer)
            buffer.array[:] = numbers(rank, count, 9)
            broadcast.run(deadline())
            assert np.array_equal(buffer.array, numbers(0, count, 9)), (dtype, count)
            buffer.array[:] = np.random.default_rng([rank, count]).standard_normal(count)
            reduce.run(deadline())
            digest.update(buffer.array.tobytes())
    encoded(joined, digest)
    background(joined)
    records(joined)
    gathered(joined)
    traffic(joined, {"hosts": [host.ranks for host in joined.hosts], "sha256": digest.hexdigest()})


def encoded(joined: Joined, digest: "hashlib._Hash") -> None:
    """Every codec, twice, so that what was left out comes along; in the background and not."""
    rank, ranks = joined.group.rank, range(joined.group.world_size)
    is_planned = isinstance(joined.collectives, PlannedCollectives)
    # Over windows every part and sum is rounded, now and the time before; by gloo each host's sum, which is as many
    # times as coarse as it has summands (the next power of two).
    coarse = sum(1 << (len(host.ranks) - 1).bit_length() for host in joined.hosts)
    num_roundings = 2 * len(ranks) if is_planned else coarse
    for name in CODECS:
        buffer = region(joined, f"as {name}", 5000)
        reduce = joined.collectives.encoded_all_reduce(name, buffer, Codec(name))
        for run in range(2):
            buffer.array[:] = numbers(rank, 5000, run)
            if run:
                reduce.start()
                reduce.finish(deadline())
            else:
                reduce.run(deadline())
            digest.update(buffer.array.tobytes())
        wanted = sum(numbers(peer, 5000, 1) for peer in ranks)
        assert name != "bf16" or np.abs(buffer.array - wanted).max() <= 64 * num_roundings, name
        leads = rank in [host.ranks[0] for host in joined.hosts]
        assert (len(reduce.residual) > 0) == (leads or is_planned)


def background(joined: Joined) -> None:
    """Started in one order and finished in another; records and a broadcast go on at the same time."""
    collectives, rank, ranks = joined.collectives, joined.group.rank, range(joined.group.world_size)
    whole = region(joined, "buckets", 4000)
    parts = [whole.part(1000 * k, 1000 * (k + 1)) for k in range(4)]
    runners = [collectives.all_reduce(f"bucket {k}", part) for k, part in enumerate(parts[:3])]
    runners.append(collectives.broadcast("last bucket", parts[3]))
    shown = collectives.records(1)
    for run in range(20):
        whole.array[:] = numbers(rank, 4000, run)
        shown.post([run + rank])
        for runner in runners:
            runner.start()
        for runner in (runners[2], runners[0], runners[3], runners[1]):
            runner.finish(deadline())
        assert np.array_equal(shown.collect(deadline())[:, 0], [run + peer for peer in ranks])
        wanted = np.sum([numbers(peer, 4000, run) for peer in ranks], axis=0)
        wanted[3000:] = numbers(0, 4000, run)[3000:]
        assert np.array_equal(whole.array, wanted), run


def gathered(joined: Joined) -> None:
    """In the order of ranks, again and again, in the background and not; the same on all."""
    rank, ranks = joined.group.rank, range(joined.group.world_size)
    for count in SIZES[:3]:
        gather = joined.collectives.all_gather(f"parts of {count}", count)
        for run in range(5):
            gather.own[:] = numbers(rank, count, run)
            if run % 2:
                gather.runner.start()
                gather.runner.finish(deadline())
            else:
                gather.runner.run(deadline())
            wanted = [numbers(peer, count, run) for peer in ranks]
            assert all(np.array_equal(part, other) for part, other in zip(gather.parts, wanted, strict=True)), run


def records(joined: Joined) -> None:
    shown = joined.collectives.records(3)
    for run in range(50):
        shown.post([joined.group.rank, run, 1.5])
        wanted = [[peer, run, 1.5] for peer in range(joined.group.world_size)]
        assert np.array_equal(shown.collect(deadline()), wanted), run


def traffic(joined: Joined, found: dict[str, Any]) -> None:
    collectives = joined.collectives
    reduces = []
    for count in TRAFFIC_ELEMENTS:
        buffer = region(joined, f"{count}", count)
        reduces.append(collectives.all_reduce(f"{count}", buffer))
    say(**found)
    counted = collectives.transport if isinstance(collectives, PlannedCollectives) else collectives
    for line in sys.stdin:
        before = counted.bytes_between
        reduces[int(line)].run(deadline())
        say(sent=counted.bytes_between - before)


def endless(joined: Joined) -> None:
    """The first steps have all the time they need: it is from then on that a test wants an end."""
    buffer = region(joined, "weights", 100_000)
    reduce = joined.collectives.all_reduce("bucket 0", buffer)
    step = 0
    while True:
        step += 1
        reduce.start()
        reduce.finish(deadline() if step > 5 else Deadline.after(JOIN_TIMEOUT_S))
        if step <= 5:
            say(step=step)


if __name__ == "__main__":
    main()
