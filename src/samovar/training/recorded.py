"""A center whose reads and updates are written down as they come."""

from samovar.box.base import Push, Versions
from samovar.box.mapped import MappedCenter
from samovar.core.clock import Deadline
from samovar.training.order_log import OrderWriter
from samovar.transports.base import Array


class WatchedCenter:
    """What is neither recorded nor replayed of `center`: its start, and its end."""

    def __init__(self, center: MappedCenter) -> None:
        self._center = center

    @property
    def num_elements(self) -> int:
        return self._center.num_elements

    @property
    def chunk_elements(self) -> int:
        return self._center.chunk_elements

    def write(self, values: Array, deadline: Deadline) -> None:
        self._center.write(values, deadline)

    def read_velocity(self, destination: Array, deadline: Deadline) -> None:
        self._center.read_velocity(destination, deadline)

    def write_velocity(self, values: Array, deadline: Deadline) -> None:
        self._center.write_velocity(values, deadline)


class RecordingCenter(WatchedCenter):
    """`center`, each read and update of which goes into `log` (see `samovar.box.base.Center`)."""

    def __init__(self, center: MappedCenter, log: OrderWriter) -> None:
        super().__init__(center)
        self._log = log

    def read(self, destination: Array, deadline: Deadline) -> Versions:
        versions = self._center.read(destination, deadline)
        self._log.read(versions)
        return versions

    def accumulate(self, sequence: int, difference: Array, deadline: Deadline, momentum: float = 0.0) -> Versions:
        versions = self._center.accumulate(sequence, difference, deadline, momentum)
        self._log.update(versions)
        return versions

    def accumulate_in_background(self, sequence: int, difference: Array) -> "RecordedPush":
        return RecordedPush(self._center.accumulate_in_background(sequence, difference), self._log)

    def exchange(self, sequence: int, weights: Array, moving_rate: float, deadline: Deadline) -> Versions:
        versions = self._center.exchange(sequence, weights, moving_rate, deadline)
        self._log.update(versions)
        return versions

    def exchange_in_background(self, sequence: int, weights: Array, moving_rate: float) -> "RecordedPush":
        return RecordedPush(self._center.exchange_in_background(sequence, weights, moving_rate), self._log)


class RecordedPush:
    """A push that is written down when it has been waited for: before that nobody knows its place."""

    def __init__(self, push: Push, log: OrderWriter) -> None:
        self._push = push
        self._log = log
        self._is_logged = False

    @property
    def versions(self) -> Versions:
        return self._push.versions

    def wait(self, deadline: Deadline) -> None:
        self._push.wait(deadline)
        if not self._is_logged:
            self._is_logged = True
            self._log.update(self._push.versions)
