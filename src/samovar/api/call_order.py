"""Checks that a user's loop calls backward and step in turn. A missing call would train wrong without an error."""

from enum import Enum, auto

from samovar.core.errors import SamovarError


class _Last(Enum):
    STEP = auto()
    BACKWARD = auto()
    MORE = auto()


class CallOrder:
    """The calls of one replica. If it `exchanges_gradients`, each step needs a call of its backward."""

    def __init__(self, rank: int, *, exchanges_gradients: bool) -> None:
        self._rank = rank
        self._exchanges_gradients = exchanges_gradients
        self._last = _Last.STEP
        self._num_steps = self._num_backwards = 0

    def backward(self, *, more: bool) -> None:
        self._last = _Last.MORE if more else _Last.BACKWARD
        self._num_backwards += 1

    def step(self) -> None:
        """Raises SamovarError if gradients of this step were not exchanged."""
        last, self._last = self._last, _Last.STEP
        self._num_steps += 1
        if not self._exchanges_gradients or last is _Last.BACKWARD:
            return
        if last is _Last.MORE:
            raise SamovarError(
                f"step(): rank {self._rank}: the last backward(loss, more=True) promised another one, and none "
                "came, so gradients were not exchanged; leave more=True out in the last part of a step"
            )
        raise SamovarError(
            f"step(): rank {self._rank}: there was no replica.backward() since the last step, so gradients were not "
            "exchanged; call replica.backward(loss) in place of loss.backward(), and before step()"
        )

    def require_steps(self, what: str) -> None:
        """Raises SamovarError if there were backward passes and never a step."""
        if self._num_backwards and not self._num_steps:
            raise SamovarError(
                f"{what}: rank {self._rank}: there were {self._num_backwards} calls of replica.backward() and none of "
                "replica.step(), so nothing was learned together; call replica.step() in place of optimizer.step()"
            )
