"""One client of `box.py`: `box_client.py BOARD CENTER read|add`, told by lines what to do; answers when it did it."""

import sys
import time

import numpy as np

from samovar import _native
from samovar.box.board import Board
from samovar.box.mapped import MappedCenter
from samovar.core.clock import Deadline

TIMEOUT_S = 60.0


def main() -> None:
    _native.die_with_parent()
    board, descriptor = Board(int(sys.argv[1])), int(sys.argv[2])
    adds = sys.argv[3] == "add"
    with MappedCenter(descriptor, board.join()) as center:
        source, own = np.ones(center.num_elements, np.float32), np.zeros(center.num_elements, np.float32)
        print("ready", flush=True)
        sequence = torn = 0
        for line in map(str.strip, sys.stdin):
            if line == "verify":
                center.read(own, Deadline.after(TIMEOUT_S))
                values = np.unique(own)
                print(int(values[0]) if values.size == 1 else values, torn, flush=True)
                continue
            sequence += 1
            began_s = time.monotonic()
            if line == "copy":
                np.copyto(own, source)
            elif adds:
                center.accumulate(sequence, source, Deadline.after(TIMEOUT_S))
            else:
                center.read(own, Deadline.after(TIMEOUT_S))
            print(began_s, time.monotonic(), flush=True)
            torn += count_torn(own, center.chunk_elements)


def count_torn(values: "np.typing.NDArray[np.float32]", chunk_elements: int) -> int:
    """Chunks whose elements are not all equal."""
    whole = values[: values.size // chunk_elements * chunk_elements].reshape(-1, chunk_elements)
    return int((whole != whole[:, :1]).any(axis=1).sum()) + int(np.unique(values[whole.size :]).size > 1)


if __name__ == "__main__":
    main()
