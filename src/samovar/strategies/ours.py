"""Our own strategies, with their names and settings for type checkers. `make tables` makes this file."""

from typing import Literal, TypeAlias, TypedDict

from samovar.strategies.async_easgd import AsyncEasgd, AsyncMeasgd, HogwildEasgd, RoundRobinEasgd
from samovar.strategies.async_sgd import AsyncMsgd, AsyncSgd, HogwildSgd
from samovar.strategies.base import Strategy
from samovar.strategies.diloco import DiLoCo
from samovar.strategies.hybrid_easgd import HybridEasgd
from samovar.strategies.local_sgd import LocalSgd
from samovar.strategies.shm_easgd import ShmEasgd
from samovar.strategies.slowmo import SlowMo
from samovar.strategies.sync import Sync
from samovar.strategies.sync_easgd import SyncEasgd

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
    SlowMo,
)

StrategyName: TypeAlias = Literal[
    "sync",
    "local-sgd",
    "diloco",
    "sync-easgd",
    "async-sgd",
    "async-msgd",
    "hogwild-sgd",
    "round-robin-easgd",
    "async-easgd",
    "async-measgd",
    "hogwild-easgd",
    "shm-easgd",
    "hybrid-easgd",
    "slowmo",
]


class Settings(TypedDict, total=False):
    """The settings that `samovar.replicate` takes after the strategy's name, each in both spellings."""

    bucket_size: int | str | None
    bucket: int | str | None
    overlap: str | None
    owner: str | None
    factors: str | None
    compress: str | None
    always_compresses: bool
    compress_always: bool
    sync_period_steps: int | None
    sync_period: int | None
    outer_rate: float | None
    outer_momentum: float | None
    fragments: int | None
    delay_steps: int | None
    delay: int | None
    mixing: float | None
    moving_rate: float | None
    worker_rate: float | None
    variant: str | None
    keep_momentum: bool | None
    max_staleness_steps: int | None
    max_staleness: int | None
    max_refused_pushes: int | None
    look_ahead: bool | None
    center_momentum: float | None
    read_first: bool | None
    group_size: int | None
