"""What strategies have in common whose workers exchange gradients and keep the same weights."""

from collections.abc import Mapping

from samovar.core.layout import Bucket
from samovar.core.stateful import State, StateValue
from samovar.strategies.base import Exchanged, TwoHalves
from samovar.transports.base import Array


class EqualWeights(TwoHalves):
    """Every step ends with the same weights on all ranks, which are the ones evaluated and saved.

    No exchange outlives its step, and every rank makes every update, unless a strategy says otherwise.
    """

    @property
    def exchanges(self) -> Exchanged:
        return "gradients"

    def begin_step(self, step: int) -> None:
        """Nothing: the weights are already equal everywhere."""

    def before_forward(self, bucket: Bucket) -> None:
        """Nothing: the update ran at the end of the last step."""

    def gradient_final(self, bucket: Bucket) -> None:
        """Nothing: gradients are exchanged at the end of the step."""

    def exchanges_at(self, _step: int) -> bool:
        return True

    def drain(self) -> None:
        """Nothing: no exchange outlives its step."""

    def gather_histories(self) -> None:
        """Nothing: every rank makes every update."""

    def center(self) -> Array | None:
        return None

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """Nothing to take back."""
