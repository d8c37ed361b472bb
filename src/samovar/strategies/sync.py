"""Synchronous SGD: every worker applies the mean of all gradients, which may travel compressed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from samovar.collectives.encoded import Codec, EncodedRunner, Floats
from samovar.collectives.engine import Collectives, PlannedCollectives
from samovar.collectives.execute import PlanRunner
from samovar.core.clock import Deadline
from samovar.core.errors import InputError
from samovar.core.layout import Bucket
from samovar.core.stateful import State, StateValue
from samovar.strategies.base import Buffers, Place, Reduced, Strategy, strategy
from samovar.strategies.config import StrategyConfig
from samovar.strategies.factors import FactoredOrEncoded, Factoring
from samovar.strategies.local_sgd import residual_notes, residuals_fit
from samovar.strategies.owned import OwnedSync, SyncInParts, spread_owners
from samovar.strategies.recipe import UNCHANGED, Recipe
from samovar.strategies.settings import ALWAYS_COMPRESSES, COMPRESS, FACTORS, OVERLAP
from samovar.strategies.traits import NONE, Chosen, Setting
from samovar.strategies.trial import Trial
from samovar.transports.base import Region

# Who updates a bucket, as --overlap is.
OWNERS = {"full": ("spread", "root"), "none": ("parts", "all")}


def _behind(chosen: Chosen, _world_size: int = 1) -> str:
    """With several buckets, the rest of the backward pass hides their exchange."""
    return chosen["overlap"] or ("none" if chosen["bucket_size_bytes"] is None else "backward")


BUCKET = Setting(
    "bucket_size_bytes",
    int,
    "The size of a bucket, which is exchanged as one: auto, model, layer, or bytes.",
    flag="--bucket",
    argument="bucket_size",
    least=1,
    unit="bytes",
    or_else=", or 'model'",
    default_words="auto",
    words="",
    is_advanced=True,
)
OWNER = Setting(
    "owner",
    str,
    "The ranks that update a bucket: spread or root with --overlap full, parts or all with --overlap none.",
    choices=sum(OWNERS.values(), ()),
    default=lambda chosen, _: OWNERS["full"][0] if _behind(chosen) == "full" else None,
    default_words="`spread` with `full`; with `none` `parts` in shared memory, else `all`",
    words="",
    source="Kuehn, Keuper and Pfreundt 2017 (CaffeGPI); Rajbhandari et al. 2020 (ZeRO)",
    is_advanced=True,
)


def _encoded(codec: str, chosen: Chosen) -> str:
    if codec == NONE:
        return ""
    return f"gradients as {codec}" + ("" if chosen["always_compresses"] else " where it helps")


Channels: TypeAlias = Sequence[tuple[Bucket, PlanRunner]]


def sum_channels(
    collectives: Collectives, buckets: Sequence[Bucket], gradients: Region, factoring: Factoring | None = None
) -> Channels:
    """An all-reduce for each bucket, except those that may travel as factors."""
    made: Mapping[int, PlanRunner] = factoring.sums if factoring else {}
    return [
        (
            bucket,
            made.get(bucket.index)
            or collectives.all_reduce(f"bucket {bucket.index}", gradients.part(bucket.start, bucket.stop)),
        )
        for bucket in buckets
    ]


@strategy(
    "sync",
    exchange="gradients, every step",
    waits_for="all workers, every step",
    settings=(
        BUCKET,
        OVERLAP.among("none", "backward", "full").by_default(_behind, "`backward` with several buckets, else `none`"),
        OWNER,
        FACTORS,
        replace(COMPRESS, words=_encoded, source="Seide et al. 2014; Karimireddy et al. 2019"),
        ALWAYS_COMPRESSES,
    ),
    recipe=Recipe(adaptive_rate=UNCHANGED, is_default=False),
)
class Sync(Strategy):
    """Every rank applies the mean gradient, added in the plan's fixed order:

        g = (1/P) sum_i g_i;  x -= solver(g)

    Weights stay bitwise equal on all ranks: each sum is made once and copied. They are evaluated and saved.

    Cost per step and bucket of S bytes: that of the plan (`samovar.collectives`), for a ring 2(P-1)/P * S bytes sent
    per rank. A rank waits for its neighbours in the plan alone; there is no barrier.
    """

    def __init__(
        self,
        channels: Channels,
        world_size: int,
        overlaps_backward: bool,
        deadline: Callable[[], Deadline],
        factoring: Factoring | None = None,
    ) -> None:
        self._channels = channels
        self._factoring = factoring
        # One bucket is final when backward ends: nothing is left to hide its exchange behind.
        self._in_background = overlaps_backward and len(channels) > 1
        self._gradient_scale = 1.0 / world_size
        self._deadline = deadline
        self._final: set[int] = set()
        self._num_started = 0

    @classmethod
    def of(cls, place: Place) -> Strategy:
        """`Sync`, `CompressedSync`, or with divided updates. One worker sends nothing, and compresses nothing."""
        chosen, collectives, world_size = place.chosen, place.collectives, place.num_workers
        if chosen.divides_updates:
            return _divided(place)
        when = (world_size, chosen.overlap == "backward", place.deadline, place.factoring)
        compresses, is_always = chosen.codec is not None and world_size > 1, chosen.always_compresses
        summed = (collectives, place.buckets, place.buffers.gradients, place.factoring)
        plain = [] if compresses and is_always else sum_channels(*summed)
        if chosen.codec is None or not compresses:
            return cls(plain, *when)
        encoded = encoded_buckets(collectives, place.buckets, place.buffers, Codec(chosen.codec), place.factoring)
        trial = Trial(collectives, f"--compress {chosen.codec}", is_always, place.deadline, place.callback)
        return CompressedSync(plain, encoded, chosen.codec, trial, *when)

    @classmethod
    def check(cls, chosen: StrategyConfig) -> None:
        has_one_bucket = chosen.bucket_size_bytes is None and not chosen.automatic_buckets
        if chosen.overlap in ("backward", "full") and has_one_bucket:
            raise InputError(
                f"--overlap {chosen.overlap}: with one bucket nothing is final before backward ends; "
                "give --bucket layer or a number of bytes too"
            )
        if chosen.owner is not None:
            _check_owner(chosen, chosen.owner)
        if chosen.codec is not None and chosen.has_owners:
            raise InputError(
                f"--compress {chosen.compress}: with --overlap full owners send weights, which are never compressed; "
                "choose --overlap backward or none, or leave --compress out"
            )
        if chosen.takes_factors and chosen.divides_updates:
            raise InputError(
                f"--factors {chosen.factors}: with --overlap full or --owner parts a gradient goes to one rank alone, "
                "and factors to all; choose --overlap backward or --owner all, or leave factors out"
            )

    @classmethod
    def computes_near(cls, chosen: StrategyConfig) -> bool:
        return chosen.codec is None and not chosen.takes_factors and not chosen.divides_updates

    def gradient_final(self, bucket: Bucket) -> None:
        """Start exchanges in the order of buckets, behind what is left of the backward pass."""
        self._final.add(bucket.index)
        while self._in_background and self._num_started in self._final:
            self._channels[self._num_started][1].start()
            self._num_started += 1

    def reduced(self, step: int) -> Reduced:
        assert len(self._final) == len(self._channels), f"step {step}: only buckets {self._final} are final"
        self._final.clear()
        self._num_started = 0
        deadline = self._deadline()
        for bucket, channel in self._channels:
            if self._in_background:
                channel.finish(deadline)
            else:
                channel.run(deadline)
            yield bucket, self._gradient_scale
        if self._factoring is not None:
            self._factoring.stepped()

    def state_dict(self) -> State:
        """Equal on all ranks."""
        return {} if self._factoring is None else self._factoring.state_dict()

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        if self._factoring is not None:
            self._factoring.load_state_dict(state)


def _check_owner(chosen: StrategyConfig, owner: str) -> None:
    if owner not in OWNERS.get(_behind(chosen), ()):
        fitting = next(overlap for overlap, owners in OWNERS.items() if owner in owners)
        raise InputError(f"--owner {owner}: is for --overlap {fitting}; add that, or leave --owner out")
    if chosen.updates_parts and chosen.codec is not None:
        raise InputError(
            f"--owner parts: ranks send weights then, which are never compressed; leave --compress {chosen.codec} "
            "out, or choose --owner all"
        )


def _divided(place: Place) -> Strategy:
    """A rank makes some of the updates, and sends weights."""
    chosen, collectives = place.chosen, place.collectives
    flag, other = ("--owner parts", "--owner all") if chosen.updates_parts else ("--overlap full", "--overlap backward")
    if not isinstance(collectives, PlannedCollectives):
        raise InputError(
            f"{flag}: needs windows that every rank can write to, and gloo has none; choose transport tcp, or {other}"
        )
    if chosen.updates_parts:
        return SyncInParts(collectives, place.buckets, place.buffers, place.deadline)
    is_root = chosen.owner == "root"
    owners = [0] * len(place.buckets) if is_root else spread_owners(place.buckets, place.num_workers)
    return OwnedSync(collectives, place.buckets, place.buffers, owners, place.deadline)


class _Exact:
    """An all-reduce that leaves nothing out, as an `EncodedRunner`."""

    def __init__(self, runner: PlanRunner) -> None:
        self.last_steps = 0
        self.residual: Floats = np.zeros(0, np.float32)
        self.run, self.start, self.finish = runner.run, runner.start, runner.finish

    def give_back(self) -> None:
        """Nothing was left out."""


@dataclass(frozen=True, slots=True)
class EncodedBucket:
    """A bucket, how it travels, and its gradients that belong to no parameter, which a codec may make other than 0."""

    bucket: Bucket
    runner: EncodedRunner
    gaps: tuple[Floats, ...]


def encoded_buckets(
    collectives: Collectives,
    buckets: Sequence[Bucket],
    buffers: Buffers,
    codec: Codec,
    factoring: Factoring | None = None,
) -> list[EncodedBucket]:
    """An all-reduce for each bucket: plain for counts, factors where these are less, else encoded."""
    gradients = buffers.gradients
    first_exact = len(gradients.array) - buffers.num_exact
    encoded = []
    for bucket in buckets:
        name, part = f"bucket {bucket.index}", gradients.part(bucket.start, bucket.stop)
        if bucket.start >= first_exact:
            runner: EncodedRunner = _Exact(collectives.all_reduce(f"{name} as it is", part))
        else:
            runner = collectives.encoded_all_reduce(name, part, codec)
            if factoring and bucket.index in factoring.sums:
                runner = FactoredOrEncoded(factoring.sums[bucket.index], runner)
        encoded.append(EncodedBucket(bucket, runner, _gaps(bucket, gradients.array)))
    return encoded


def _gaps(bucket: Bucket, gradients: Floats) -> tuple[Floats, ...]:
    """The elements between parameters, each of which starts on a cache line."""
    starts = [*(entry.offset for entry in bucket.entries[1:]), bucket.stop]
    return tuple(gradients[entry.stop : start] for entry, start in zip(bucket.entries, starts, strict=True))


class CompressedSync(Sync):
    """As `Sync`, with an encoded all-reduce of each bucket where the trial says so; weights stay bitwise equal.

        sent = Q(g_i + e_i)     e_i = g_i + e_i - sent

    for each message of rank i and its own e_i (`samovar.collectives.encoded`), so that nothing is lost, only late. A
    trial that ends without compression gives all e_i back with the next gradients. Clipping, weight decay and momentum
    see the decoded sum. `plain` may be empty if the trial never asks for it.

    Memory: the e_i, 1N floats on every rank, and messages. Bytes on the wire: the codec's part of the plan's.
    Sources: Seide et al. 2014 (1-bit SGD); Stich, Cordonnier and Jaggi 2018, Karimireddy et al. 2019 (why feeding the
    error back converges as without compression).
    """

    def __init__(
        self,
        plain: Channels,
        encoded: Sequence[EncodedBucket],
        codec: str,
        trial: Trial,
        world_size: int,
        overlaps_backward: bool,
        deadline: Callable[[], Deadline],
        factoring: Factoring | None = None,
    ) -> None:
        self._plain, self._compressed = plain, [(one.bucket, one.runner) for one in encoded]
        super().__init__(self._compressed, world_size, overlaps_backward, deadline, factoring)
        self._runners = [one.runner for one in encoded]
        self._gaps = [one.gaps for one in encoded]
        self._codec = codec
        self._trial = trial
        self._gives_back = False
        self._choose()

    @property
    def is_compressed(self) -> bool:
        """Whether the next step's gradients are."""
        return self._trial.is_compressed

    def gradient_final(self, bucket: Bucket) -> None:
        if self._gives_back:
            self._runners[bucket.index].give_back()
        super().gradient_final(bucket)

    def reduced(self, step: int) -> Reduced:
        for bucket, gradient_scale in super().reduced(step):
            for gap in self._gaps[bucket.index]:
                gap[:] = 0.0
            yield bucket, gradient_scale
        self._gives_back = self._trial.stepped()
        self._choose()

    def state_dict(self) -> State:
        """This rank's own: every rank must save its state and load it again."""
        residuals: State = {f"residual/{index}": runner.residual.copy() for index, runner in enumerate(self._runners)}
        kept: State = {**residual_notes(self._codec), "gives_back": int(self._gives_back)}
        return super().state_dict() | residuals | kept | self._trial.state_dict()

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """With another codec the trial begins again, on all ranks. It drops residuals, as of another cut or order.

        A rank whose messages now another one of its host sends has none of its own.
        """
        super().load_state_dict(state)
        found = [np.asarray(state.get(f"residual/{index}", ())) for index in range(len(self._runners))]
        is_same = state.get("codec") == self._codec
        fits = residuals_fit(state, self._codec, self._trial.callback.tell) and all(
            values.shape == runner.residual.shape for values, runner in zip(found, self._runners, strict=True)
        )
        for values, runner in zip(found, self._runners, strict=True):
            runner.residual[:] = values if fits else 0.0
        self._gives_back = is_same and bool(state["gives_back"])
        self._trial.load_state_dict(state if is_same else {})
        self._choose()

    def _choose(self) -> None:
        """How the next step's gradients travel."""
        self._channels = self._compressed if self._trial.is_compressed else self._plain
