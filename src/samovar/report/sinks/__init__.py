"""The receivers of a run's figures, such as a file or a service, and which of them a user names.

Modules of services need their packages, and are imported when they are asked for.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, TypeAlias

from samovar.core.errors import InputError, SamovarError
from samovar.core.modules import object_at, require_optional

# A service's name, which is that of its package and of its module here, and its class there.
SERVICES: Final[Mapping[str, str]] = {"tensorboard": "TensorBoard", "wandb": "WandB", "mlflow": "MLflow"}
_FORMS = "tensorboard[:FOLDER], wandb[:PROJECT], mlflow[:EXPERIMENT], or your own class as FILE.py:NAME or MODULE:NAME"


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


Place: TypeAlias = str | Path | Sink


@dataclass(frozen=True, slots=True)
class MetricsChoice:
    """The folder of metrics.jsonl, and the other sinks: objects, or their names as text. All may be left out."""

    folder: Path | None = None
    sinks: tuple[str | Sink, ...] = ()


def metrics_choice(given: Place | Sequence[Place] | None, what: str, *, with_folder: bool = True) -> MetricsChoice:
    """The choice of `given`: places, or one text with commas between them. Raises InputError about `what`.

    A name with a colon, and that of a service, is a sink. Any other is a folder, of which there may be one.
    """
    places = [place for one in _several(given) for place in (one.split(",") if isinstance(one, str) else [one])]
    folders = [Path(place) for place in places if isinstance(place, str | Path) and not _is_sink(place)]
    strange = [place for place in places if not isinstance(place, str | Path | Sink)]
    if len(folders) > with_folder or "" in places or strange:
        allowed = f"a folder, {_FORMS}" if with_folder else _FORMS
        raise InputError(f"{what}: got {', '.join(map(str, places))!r}; give {allowed}")
    if with_folder and not folders and "tensorboard" in places:
        raise InputError(f"{what} tensorboard: give its folder, as tensorboard:FOLDER, or a folder for the run")
    named = (_checked(place, what) for place in places if not isinstance(place, Path) and _is_sink(place))
    return MetricsChoice(folders[0] if folders else None, tuple(named))


def named_sinks(given: str | Sequence[str] | None, what: str) -> tuple[str, ...]:
    """The sinks of a run that has a folder of its own. Raises InputError about `what` if one cannot be used."""
    sinks = metrics_choice(given, what, with_folder=False).sinks
    if own := [type(sink).__name__ for sink in sinks if not isinstance(sink, str)]:
        raise InputError(f"{what}: got a {own[0]}, but another process writes; give FILE.py:NAME or MODULE:NAME")
    return tuple(map(str, sinks))


def open_sinks(
    choice: MetricsChoice, folder: Path | None, run: Mapping[str, object], what: str, warn: Callable[[str], None]
) -> list[Sink]:
    """The sinks, begun with the settings of `run`. Those with files of their own put them into `folder` by default.

    Raises InputError about `what` if one cannot begin. `warn` gets a sentence about one that fails later.
    """
    opened: list[Sink] = []
    try:
        for sink in choice.sinks:
            name = sink if isinstance(sink, str) else type(sink).__name__
            opened.append(GuardedSink(_begun(sink, name, folder, run, what), f"{what} {name}", warn))
    except BaseException:
        close_all(opened)
        raise
    return opened


def close_all(sinks: Iterable[Sink]) -> None:
    for sink in sinks:
        sink.close()


def _several(given: Place | Sequence[Place] | None) -> Sequence[Place]:
    if given is None:
        return ()
    return given if isinstance(given, Sequence) and not isinstance(given, str) else (given,)


def _is_sink(place: object) -> bool:
    return isinstance(place, Sink) or (isinstance(place, str) and (":" in place or place in SERVICES))


def _checked(place: str | Sink, what: str) -> str | Sink:
    """A name as every process finds it. Raises InputError if its package is missing, or there is no such class."""
    if not isinstance(place, str):
        return place
    service = place.partition(":")[0]
    if service in SERVICES:
        require_optional(service)
        return place
    found, kind = object_at(place, what)
    if not isinstance(kind, type) or not issubclass(kind, Sink):
        raise InputError(f"{what} {place}: is not a sink; give a subclass of samovar.Sink with write()")
    return found


def _begun(sink: str | Sink, name: str, folder: Path | None, run: Mapping[str, object], what: str) -> Sink:
    try:
        made = _made(sink, folder, what) if isinstance(sink, str) else sink
        made.begin(run)
    except SamovarError:
        raise
    except Exception as error:
        raise InputError(f"{what} {name}: {type(error).__name__}: {error}; correct it, or leave it out") from error
    return made


def _made(written: str, folder: Path | None, what: str) -> Sink:
    service, _, place = written.partition(":")
    if service not in SERVICES:
        _, kind = object_at(written, what)
        return kind()  # type: ignore[operator,no-any-return]
    if service == "tensorboard" and not place:
        assert folder is not None, "the choice was refused without one"
        place = str(folder / service)
    kind = getattr(import_module(f"samovar.report.sinks.{service}"), SERVICES[service])
    return kind(*[place] if place else [])  # type: ignore[no-any-return]
