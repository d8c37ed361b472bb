"""One client of `box.py`. It follows lines of its input, and answers with times on a common clock.

JOB is JSON: the descriptors of board and center, and whether it adds or reads. At the end of the input it answers with
the values in the center, and the number of incomplete chunks that it read.
"""

import json
import sys
import time

import numpy as np
import numpy.typing as npt
from turns import answer

from samovar import _native
from samovar.box.board import Board
from samovar.box.mapped import MappedCenter
from samovar.core.clock import Deadline

TIMEOUT_S = 60.0


def main() -> None:
    _native.die_with_parent()
    job = json.loads(sys.argv[1])
    with MappedCenter(job["center"], Board(job["board"]).join()) as center:
        source, own = np.ones(center.num_elements, np.float32), np.zeros(center.num_elements, np.float32)
        answer("ready")
        torn = 0
        for sequence, line in enumerate(sys.stdin, start=1):
            began_s, computed_s = time.monotonic(), time.process_time()
            if line.strip() == "copy":
                np.copyto(own, source)
            elif job["adds"]:
                center.accumulate(sequence, source, Deadline.after(TIMEOUT_S))
            else:
                center.read(own, Deadline.after(TIMEOUT_S))
            answer([began_s, time.monotonic(), time.process_time() - computed_s])
            torn += count_torn(own, center.chunk_elements)
        center.read(own, Deadline.after(TIMEOUT_S))
        answer({"values": np.unique(own).astype(int).tolist(), "torn": torn})


def count_torn(values: npt.NDArray[np.float32], chunk_elements: int) -> int:
    """Chunks whose elements are not all equal."""
    whole = values[: values.size // chunk_elements * chunk_elements].reshape(-1, chunk_elements)
    return int((whole != whole[:, :1]).any(axis=1).sum()) + int(np.unique(values[whole.size :]).size > 1)


if __name__ == "__main__":
    main()
