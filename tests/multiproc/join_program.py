"""One rank that joins its job: `join_program.py WHAT [TIMEOUT_S]`; its environment names it.

`join_program.py grouped RANK WORLD_SIZE PORT` knows its place by itself.

With a limit it says "here" first, and joins when it is given a line: others may take long to start.

sums     joins twice and adds up, prints what it found as JSON
beside   joins after torch's own process group was made, and uses both
grouped  the same, as a launcher that sets WORLD_SIZE but no RANK makes the group
early    as `sums`, but rank 0 ends while the others still work
forks    as `sums`, but in the middle rank 0 forks a process that ends as a program does
"""

import json
import os
import sys
import threading
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from samovar import _native
from samovar.api.connect import Joined, join_group
from samovar.core.clock import Deadline
from samovar.core.errors import SamovarError
from samovar.transports.base import Region

TIMEOUT_S = 60.0


def main() -> None:
    _native.die_with_parent()
    timeout_s = TIMEOUT_S
    if len(sys.argv) == 3:
        timeout_s = float(sys.argv[2])
        print("here", flush=True)
        sys.stdin.readline()
    try:
        {"sums": sums, "beside": beside, "grouped": grouped, "early": early, "forks": forks}[sys.argv[1]](timeout_s)
    except SamovarError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def add_up(joined: Joined, count: int) -> None:
    opened = joined.collectives.region(f"{count}", 4 * count)
    buffer = Region.of(opened.window, opened.offset, count, np.float32)
    reduce = joined.collectives.all_reduce(f"sum of {count}", buffer)
    ranks = joined.group.world_size
    for run in range(3):
        buffer.array[:] = np.arange(count) % 100 + joined.group.rank + run
        reduce.run(Deadline.after(TIMEOUT_S))
        wanted = ranks * (np.arange(count) % 100 + run) + ranks * (ranks - 1) // 2
        assert np.array_equal(buffer.array, wanted), (count, run)


def sums(timeout_s: float) -> None:
    joined, again = join_group(timeout_s), join_group(timeout_s, "tree")
    for count in (1, 1000, 100_000):
        add_up(joined, count)
        add_up(again, count)
    sockets = [link for link in _links() if link.startswith("socket:")]
    joined.close()
    joined.close()
    again.close()
    memory = [link for link in _links() if "memfd" in link]
    threads = [thread.name for thread in threading.enumerate()]
    found = {"rank": joined.group.rank, "hosts": [host.ranks for host in joined.hosts], "sockets": len(sockets)}
    print(json.dumps(found | {"memory": memory, "threads": threads}))


def beside(timeout_s: float) -> None:
    dist.init_process_group("gloo")
    use_both(timeout_s)


def grouped(timeout_s: float) -> None:
    rank, world_size, port = map(int, sys.argv[2:])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    use_both(timeout_s)


def use_both(timeout_s: float) -> None:
    joined = join_group(timeout_s)
    add_up(joined, 1000)
    ones = torch.ones(3)
    dist.all_reduce(ones)
    assert ones.tolist() == [joined.group.world_size] * 3
    add_up(joined, 10)
    dist.destroy_process_group()
    print(json.dumps({"rank": joined.group.rank}))


def early(timeout_s: float) -> None:
    joined = join_group(timeout_s)
    add_up(joined, 10)
    if joined.group.rank > 0:
        sys.stdin.readline()
    print(json.dumps({"rank": joined.group.rank}))


def forks(timeout_s: float) -> None:
    joined = join_group(timeout_s)
    add_up(joined, 10)
    if joined.group.rank == 0:
        child = os.fork()
        if not child:
            _native.die_with_parent()
            sys.exit()
        assert os.waitpid(child, 0)[1] == 0
    add_up(joined, 1000)
    print(json.dumps({"rank": joined.group.rank}))


def _links() -> list[str]:
    links = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            links.append(str(path.readlink()))
        except OSError:  # the descriptor of this listing
            continue
    return links


if __name__ == "__main__":
    main()
