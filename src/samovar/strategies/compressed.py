"""Synchronous SGD whose gradients travel compressed, and keep what compression leaves out for the next step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from samovar.collectives.encoded import Codec, EncodedRunner, Floats
from samovar.collectives.engine import Collectives
from samovar.collectives.execute import PlanRunner
from samovar.core.clock import Deadline
from samovar.core.layout import Bucket
from samovar.core.stateful import State, StateValue
from samovar.strategies.base import Buffers, Reduced
from samovar.strategies.factors import FactoredOrEncoded, FactoredSum
from samovar.strategies.sync import Channels, Sync
from samovar.strategies.trial import Trial


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
    factored: Mapping[int, FactoredSum] | None = None,
) -> list[EncodedBucket]:
    """An encoded all-reduce for each bucket; a plain one for counts; factors where they are less."""
    gradients = buffers.gradients
    first_exact = len(gradients.array) - buffers.num_exact
    encoded = []
    for bucket in buckets:
        name, part = f"bucket {bucket.index}", gradients.part(bucket.start, bucket.stop)
        if bucket.start >= first_exact:
            runner: EncodedRunner = _Exact(collectives.all_reduce(f"{name} as it is", part))
        else:
            runner = collectives.encoded_all_reduce(name, part, codec)
            if factored and bucket.index in factored:
                runner = FactoredOrEncoded(factored[bucket.index], runner)
        encoded.append(EncodedBucket(bucket, runner, _gaps(bucket, gradients.array)))
    return encoded


def _gaps(bucket: Bucket, gradients: Floats) -> tuple[Floats, ...]:
    """What lies between parameters, each of which starts on a cache line."""
    starts = [*(entry.offset for entry in bucket.entries[1:]), bucket.stop]
    return tuple(gradients[entry.stop : start] for entry, start in zip(bucket.entries, starts, strict=True))


class CompressedSync(Sync):
    """As `Sync`, with an encoded all-reduce of each bucket where the trial says so; weights stay bitwise equal.

        sent = Q(g_i + e_i)     e_i = g_i + e_i - sent

    for each message of rank i and its own e_i (`samovar.collectives.encoded`), so that nothing is lost, only late. A
    trial that ends without compression gives all e_i back with the next gradients. Clipping, weight decay and momentum
    see the decoded sum. `plain` may be empty where the trial never asks for it.

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
    ) -> None:
        self._plain, self._compressed = plain, [(one.bucket, one.runner) for one in encoded]
        super().__init__(self._compressed, world_size, overlaps_backward, deadline)
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
        kept: State = {"codec": self._codec, "gives_back": int(self._gives_back)}
        return residuals | kept | self._trial.state_dict()

    def load_state_dict(self, state: Mapping[str, StateValue]) -> None:
        """The residuals of another codec, cut or plan are left out, and the trial begins anew."""
        found = [np.asarray(state.get(f"residual/{index}", ())) for index in range(len(self._runners))]
        fits = state.get("codec") == self._codec and all(
            values.shape == runner.residual.shape for values, runner in zip(found, self._runners, strict=True)
        )
        for values, runner in zip(found, self._runners, strict=True):
            runner.residual[:] = values if fits else 0.0
        self._gives_back = fits and bool(state["gives_back"])
        self._trial.load_state_dict(state if fits else {})
        self._choose()

    def _choose(self) -> None:
        """How the next step's gradients travel."""
        self._channels = self._compressed if self._trial.is_compressed else self._plain
