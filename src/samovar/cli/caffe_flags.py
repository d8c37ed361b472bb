"""The command line of `samovar caffe`, in the form that Caffe (gflags) reads it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from samovar.cli.strategy_flags import own_strategy, written_type
from samovar.config import PHASES, parse_weights
from samovar.core.errors import InputError, nearest
from samovar.launch.processes import SignalEffect
from samovar.strategies.traits import declared_settings

COMMANDS = ("train", "test", "time", "device_query")
# Flags of glog, the library that writes Caffe's log: this log always goes to stderr, in full.
CAFFE_EFFECTS = (SignalEffect.STOP, SignalEffect.SNAPSHOT, SignalEffect.NONE)
_OF_GLOG = ("log_dir", "logbufsecs", "minloglevel", "stderrthreshold", "v", "vmodule", "max_log_size")
_OF_GLOG_ON_OFF = ("logtostderr", "alsologtostderr", "colorlogtostderr", "log_prefix")


@dataclass(frozen=True, slots=True)
class CaffeFlags:
    """The given flags, with Caffe's names, meanings and defaults, except for the last four, which are Samovar's."""

    command: str
    solver: Path | None = None
    model: Path | None = None
    weights: tuple[Path, ...] = ()
    snapshot: Path | None = None
    gpu: str | None = None
    iterations: int = 50
    phase: str | None = None
    level: int = 0
    stage: tuple[str, ...] = ()
    sigint_effect: SignalEffect = SignalEffect.STOP
    sighup_effect: SignalEffect = SignalEffect.SNAPSHOT
    workers: int = 1
    threads_per_worker: int | None = None
    strategy: str = "sync"
    settings: Mapping[str, object] = field(default_factory=dict)

    def require(self, name: str, example: str) -> Path:
        """The file of flag `name`; InputError if it is missing or no file."""
        path: Path | None = getattr(self, name)
        if path is None:
            raise InputError(f"-{name} is missing; give the {example}")
        if not path.is_file():
            raise InputError(f"-{name} {path}: no such file; give the {example}")
        return path


def parse_caffe_flags(words: Sequence[str]) -> CaffeFlags:
    """The command and its flags: `-flag value`, `-flag=value`, one dash or two; the last wins, and empty text is none.

    Raises InputError for an unknown command or flag, and for a value that the flag cannot have.
    """
    own_strategy(words, ("-strategy", "--strategy"))
    settings = {own[0].spellings[-1]: own[0] for own in declared_settings().values() if own[0].has_flag}
    readers = {**_READERS, **{name: _OF_TYPE[written_type(setting)] for name, setting in settings.items()}}
    commands: list[str] = []
    values: dict[str, object] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            commands.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if _is_of_glog(name, bool(equals), rest):
            continue
        if name not in readers:
            known = nearest(f"-{name}", [f"-{flag}" for flag in readers])
            raise InputError(f"{word}: samovar caffe has no such flag; {known}")
        if not equals:
            value = _next_word(name, rest)
        values[name] = readers[name](name, value)
    given = {setting.name: values.pop(name) for name, setting in settings.items() if name in values}
    return dataclasses.replace(CaffeFlags(_command(commands)), **values, settings=given)  # type: ignore[arg-type]


def _command(given: Sequence[str]) -> str:
    if len(given) != 1 or given[0] not in COMMANDS:
        what = f"got {' '.join(given)!r}" if given else "no command"
        raise InputError(f"samovar caffe: {what}; give one of: {', '.join(COMMANDS)}")
    return given[0]


def _next_word(name: str, rest: list[str]) -> str:
    if not rest:
        raise InputError(f"-{name} needs a value; write -{name} VALUE or -{name}=VALUE")
    return rest.pop(0)


def _is_of_glog(name: str, has_value: bool, rest: list[str]) -> bool:
    """Whether a flag is glog's; its value is taken away."""
    if name in _OF_GLOG_ON_OFF or name.removeprefix("no") in _OF_GLOG_ON_OFF:
        return True
    if name in _OF_GLOG:
        if not has_value:
            _next_word(name, rest)
        return True
    return False


def _path(_name: str, value: str) -> Path | None:
    return Path(value) if value else None


def _number(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise InputError(f"-{name} {value}: is not a whole number; give one") from None


def _real(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise InputError(f"-{name} {value}: is not a number; give one") from None


def _truth(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise InputError(f"-{name} {value}: give true or false")
    return value == "true"


def _count(name: str, value: str) -> int:
    number = _number(name, value)
    if number < 1:
        raise InputError(f"-{name} {value}: give at least 1")
    return number


def _names(_name: str, value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _phase(name: str, value: str) -> str | None:
    if value and value not in PHASES:
        raise InputError(f"-{name} {value}: give one of: {', '.join(PHASES)}")
    return value or None


def _effect(name: str, value: str) -> SignalEffect:
    effects = {effect.value: effect for effect in CAFFE_EFFECTS}
    if value not in effects:
        raise InputError(f"-{name} {value}: give one of: {', '.join(effects)}")
    return effects[value]


_OF_TYPE: dict[type, Callable[[str, str], object]] = {int: _number, float: _real, bool: _truth, str: lambda _, v: v}
_READERS: dict[str, Callable[[str, str], object]] = {
    "solver": _path,
    "model": _path,
    "weights": lambda _name, value: parse_weights(value) if value else (),
    "snapshot": _path,
    "gpu": lambda _name, value: value or None,
    "iterations": _count,
    "phase": _phase,
    "level": _number,
    "stage": _names,
    "sigint_effect": _effect,
    "sighup_effect": _effect,
    "workers": _count,
    "threads_per_worker": _count,
    "strategy": _OF_TYPE[str],
}
