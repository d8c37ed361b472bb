"""A member that adds one number to every element of a center until it is killed, and writes zeros over its velocity.

python center_program.py BOARD CENTER INDEX WEIGHT      two descriptors; prints its incarnation
"""

import sys
from itertools import count

import numpy as np

from samovar import _native
from samovar.box.board import Board
from samovar.box.mapped import MappedCenter
from samovar.core.clock import Deadline


def main() -> None:
    _native.die_with_parent()
    board_descriptor, center_descriptor, index, weight = map(int, sys.argv[1:])
    member = Board(board_descriptor).join(index)
    with MappedCenter(center_descriptor, member) as center:
        difference = np.full(center.num_elements, weight, np.float32)
        zeros = np.zeros_like(difference)
        print(member.incarnation, flush=True)
        for sequence in count(1):
            if sequence % 2:
                center.accumulate(sequence, difference, Deadline.after(30))
                center.write_velocity(zeros, Deadline.after(30))
            else:
                center.accumulate_in_background(sequence, difference).wait(Deadline.after(30))


if __name__ == "__main__":
    main()
