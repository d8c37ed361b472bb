"""What the words of a board row mean; ranks and launcher show each other these numbers."""

from enum import IntEnum


class BoardWord(IntEnum):
    """One word of a row. `STEPS_DONE` is a rank's, the next two anybody's who was asked by a signal."""

    STEPS_DONE = 0
    STOP_SIGNAL = 1  # number of the signal that asked to stop; 0: none
    SNAPSHOT_REQUESTS = 2  # how many snapshots were asked for so far
    IS_GONE = 3  # 1: the launcher says of this rank that it has ended and will not come back
