"""LeNet, batch 64: one worker against a plain torch loop, two workers against the same two without exchange."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from figures import Figure, compare

from samovar.data.digits import write_digits
from samovar.launch.placement import num_available_cpus
from samovar.transports.shm import create_segment

FOLDER = Path(__file__).parent
EXAMPLES = FOLDER.parent / "examples" / "lenet"
TIMEOUT_S = 600.0


def run() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        write_digits(Path(folder) / "data")
        one = measure(1, Path(folder))[0]
        figures = [
            compare("LeNet b64, 1 worker x 1 thread / plain torch loop", one["ours"], one["torch"], "samples/s", 1.2)
        ]
        if num_available_cpus() < 2:
            return figures
        ranks = measure(2, Path(folder))
    together = [sum(rates) for rates in zip(*(rank["ours"] for rank in ranks), strict=True)]
    apart = [sum(rates) for rates in zip(*(rank["no exchange"] for rank in ranks), strict=True)]
    alone = [rate for rank in ranks[:1] for rate in rank["alone"]]
    return [
        *figures,
        compare("LeNet b64, 2 workers / the same two, exchange off", together, apart, "samples/s", 0.93),
        compare("LeNet b64, 2 workers / 1 worker", together, alone, "samples/s", None),
    ]


def measure(world_size: int, folder: Path) -> list[dict[str, list[float]]]:
    """What each rank of `lenet_rank.py` measured; every rank on a core of its own."""
    segment = create_segment(world_size)
    cpus = sorted(os.sched_getaffinity(0))
    arguments = [sys.executable, str(FOLDER / "lenet_rank.py"), str(EXAMPLES / "digits_solver.prototxt")]
    processes = [
        subprocess.Popen(
            [*arguments, str(rank), str(world_size), str(segment), str(cpus[rank % len(cpus)])],
            cwd=folder,
            pass_fds=[segment],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    os.close(segment)
    outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in processes]
    if any(process.returncode != 0 for process in processes):
        raise SystemExit("a rank of the benchmark failed; its error stands above")
    return [json.loads(output) for output in outputs]
