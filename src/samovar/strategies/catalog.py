"""All strategies, by the names that they declare."""

from samovar.strategies.async_easgd import AsyncEasgd, AsyncMeasgd, HogwildEasgd, RoundRobinEasgd
from samovar.strategies.async_sgd import AsyncMsgd, AsyncSgd, HogwildSgd
from samovar.strategies.center_steps import CenterSteps
from samovar.strategies.diloco import DiLoCo
from samovar.strategies.hybrid_easgd import HybridEasgd
from samovar.strategies.local_sgd import LocalSgd, LocalSteps
from samovar.strategies.shm_easgd import ShmEasgd
from samovar.strategies.sync import Sync
from samovar.strategies.sync_easgd import SyncEasgd
from samovar.strategies.traits import Traits

_IN_STEP: tuple[type[LocalSteps], ...] = (LocalSgd, DiLoCo, SyncEasgd)
_AT_A_CENTER: tuple[type[CenterSteps], ...] = (
    AsyncSgd,
    AsyncMsgd,
    HogwildSgd,
    RoundRobinEasgd,
    AsyncEasgd,
    AsyncMeasgd,
    HogwildEasgd,
    ShmEasgd,
    HybridEasgd,
)
# Whose workers exchange weights after steps of their own, and whose meet at a center; `Sync` is neither.
IN_STEP = {kind.traits.name: kind for kind in _IN_STEP}
AT_A_CENTER = {kind.traits.name: kind for kind in _AT_A_CENTER}
TRAITS: dict[str, Traits] = {
    Sync.traits.name: Sync.traits,
    **{name: kind.traits for name, kind in IN_STEP.items()},
    **{name: kind.traits for name, kind in AT_A_CENTER.items()},
}
