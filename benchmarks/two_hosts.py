"""Two hosts on a slow link, one rank each: `sync-easgd`, `sync` and compressed `sync` against DDP on gloo. Needs root.

The hosts are network namespaces of this machine, the link is held to its rate by `tc`.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from figures import Figure, compare

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "multihost"))
from namespaces import INTERFACE, NamespaceHost, reason_against, two_hosts

RANK_PROGRAM = Path(__file__).with_name("two_hosts_rank.py")
ETHERNET_MTU = 1500
PORT = 29_500
TIMEOUT_S = 3600.0
# Rate, steps of DDP in a block, pairs of blocks, least ratio.
SPEEDS = (("100mbit", 2, 3, 7.0), ("1gbit", 6, 5, 1.4))
# By codec, least ratio.
GRADIENT_BARS = {"none": 1.25, "bf16": 1.5}
DDP_BUCKETS_MIB = (25, 100)
GOAL, MOST_OF_DDPS_TIME = 0.985, 0.4


def run_speed() -> list[Figure]:
    figures = []
    for rate, ddp_steps, pairs, bar in SPEEDS:
        rates = measure(rate, "speed", "--pairs", str(pairs), "--ddp-steps", str(ddp_steps))
        name = f"AlexNet b16, 2 hosts, {rate}: sync-easgd every 8 / DDP"
        figures.append(compare(name, rates["ours"], rates["theirs"], "samples/s", bar))
    return figures


def run_gradients() -> list[Figure]:
    """Against DDP with the bucket size that is the faster one here; two nets at a time, for the memory's sake."""
    sizes = {size: _gradients("none", size, pairs=2) for size in DDP_BUCKETS_MIB}
    best = max(sizes, key=lambda size: median(sizes[size]["theirs"]))
    figures = []
    for codec, bar in GRADIENT_BARS.items():
        rates = _gradients(codec, best, pairs=5)
        name = f"AlexNet b16, 2 hosts, 1gbit: sync, {codec} / DDP, {best} MiB"
        figures.append(compare(name, rates["ours"], rates["theirs"], "samples/s", bar))
    return figures


def _gradients(codec: str, bucket_mib: int, pairs: int) -> dict[str, list[float]]:
    options = ("--codec", codec, "--bucket-mib", str(bucket_mib), "--pairs", str(pairs), "--ddp-steps", "3")
    return measure("1gbit", "gradients", *options)


def run_accuracy(mnist: Path | None) -> list[Figure]:
    if mnist is None:
        raise SystemExit("give the folder of MNIST's four IDX files with --mnist")
    found = measure("100mbit", "accuracy", "--pairs", "3", "--goal", str(GOAL), "--data", str(mnist.resolve()))
    for side in ("our", "their"):
        sys.stderr.write(f"{side} steps to {GOAL}: {found[f'{side} steps']}\n")
    rates = {side: [1 / seconds for seconds in found[side]] for side in ("ours", "theirs")}
    name = f"LeNet b64, 2 hosts, 100mbit, MNIST to {GOAL}: DDP's time / ours"
    return [compare(name, rates["ours"], rates["theirs"], "runs/s", 1 / MOST_OF_DDPS_TIME)]


def measure(rate: str, task: str, *options: str) -> dict[str, list[float]]:
    """What rank 0 of `two_hosts_rank.py` measured; each host computes on a core of its own."""
    if reason := reason_against():
        raise SystemExit(f"this benchmark cannot run: {reason}")
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder, two_hosts(rate, ETHERNET_MTU) as hosts:
        out = Path(folder) / "rates.json"
        processes = [
            _start(host, rank, hosts[0].address, [task, str(out), *options]) for rank, host in enumerate(hosts)
        ]
        ends = [process.wait(TIMEOUT_S) for process in processes]
        if any(ends):
            raise SystemExit("a rank of the benchmark failed; its error stands above")
        rates: dict[str, list[float]] = json.loads(out.read_text())
    return rates


def _start(host: NamespaceHost, rank: int, master: str, arguments: list[str]):  # type: ignore[no-untyped-def]
    cpu = sorted(os.sched_getaffinity(0))[rank]
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": master,
        "MASTER_PORT": str(PORT),
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "OMP_NUM_THREADS": "1",
    }
    command = ["taskset", "-c", str(cpu), sys.executable, str(RANK_PROGRAM), *arguments]
    return host.start(command, env=os.environ | variables, stdout=None, stderr=None)
