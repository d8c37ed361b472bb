"""A receiver of a run's figures, such as a file or a service."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence


class Sink:
    """A receiver of a run's figures, on one rank. A subclass needs only `write`.

    `begin` and `close` are called once, at the start and the end. If a sink raises in `write` or `close`, the run
    continues without it and says so.
    """

    def begin(self, run: Mapping[str, object]) -> None:
        """Take the settings of the run, by name. An error here ends the run."""

    def write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        """Take the values of `step`, counted from 1.

        `kind` is "train" after a step, and "test", "test_1", ... after a test. With workers that do not wait for each
        other, values of kind "workers" are lists, one entry a worker. Times are in seconds. A step and kind come once.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Take note that the run is over."""


class GuardedSink(Sink):
    """`inner`, without which the run continues if it fails. `warn(sentence)` then shows why."""

    def __init__(self, inner: Sink, name: str, warn: Callable[[str], None]) -> None:
        self._inner: Sink | None = inner
        self._name = name
        self._warn = warn

    def write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        self._try(lambda inner: inner.write(step, kind, values))

    def close(self) -> None:
        self._try(lambda inner: inner.close())
        self._inner = None

    def _try(self, call: Callable[[Sink], None]) -> None:
        if self._inner is None:
            return
        try:
            call(self._inner)
        except Exception as error:
            self._inner = None
            self._warn(
                f"{self._name} gets no more figures, because it failed with {type(error).__name__}: {error}; the run "
                "continues without it"
            )


def scalars(kind: str, values: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """The numbers of a line by name, as services want them: "train/loss"; entry i of a list is "workers/loss/i"."""
    for name, value in values.items():
        if isinstance(value, Sequence) and not isinstance(value, str):
            yield from scalars(f"{kind}/{name}", {str(index): item for index, item in enumerate(value)})
        elif isinstance(value, bool | int | float):
            yield f"{kind}/{name}", float(value)


def finite_scalars(kind: str, values: Mapping[str, object]) -> dict[str, float]:
    """The same without NaN and infinities, for services that refuse them."""
    return {name: value for name, value in scalars(kind, values) if math.isfinite(value)}
