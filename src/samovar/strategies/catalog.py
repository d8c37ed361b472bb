"""Our own strategies, in the order in which they are told of: to import this is to know them."""

from samovar.strategies.async_easgd import AsyncEasgd, AsyncMeasgd, HogwildEasgd, RoundRobinEasgd
from samovar.strategies.async_sgd import AsyncMsgd, AsyncSgd, HogwildSgd
from samovar.strategies.base import Strategy
from samovar.strategies.diloco import DiLoCo
from samovar.strategies.hybrid_easgd import HybridEasgd
from samovar.strategies.local_sgd import LocalSgd
from samovar.strategies.shm_easgd import ShmEasgd
from samovar.strategies.sync import Sync
from samovar.strategies.sync_easgd import SyncEasgd
from samovar.strategies.traits import KINDS

OURS: tuple[type[Strategy], ...] = (
    Sync,
    LocalSgd,
    DiLoCo,
    SyncEasgd,
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
for _kind in OURS:  # whatever was imported first
    KINDS[_kind.traits.name] = KINDS.pop(_kind.traits.name)
STRATEGIES = tuple(kind.traits.name for kind in OURS)
