"""A flag for each setting that strategies declare."""

import inspect
from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated

from samovar.cli.flags import SHARING
from samovar.strategies.config import declared_as
from samovar.strategies.sync import BUCKET
from samovar.strategies.traits import KINDS, Setting, Value, declared_settings


def own_strategy(words: Sequence[str], flags: tuple[str, ...] = ("--strategy",)) -> None:
    """Import the user's own strategy that these words ask for, if any: its settings become flags too."""
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        flag, equals, value = word.partition("=")
        if flag in flags and ":" in (given := value if equals else following):
            declared_as(given)


def settings_of_strategies() -> list[inspect.Parameter]:
    """A flag for each setting of all strategies; None is the strategy's default."""
    return [_parameter(name, own) for name, own in declared_settings().items() if own[0].has_flag]


def written_type(setting: Setting) -> type[Value]:
    """The type of what is written after the flag: --bucket takes words too."""
    return str if setting.name == BUCKET.name else setting.kind


def _parameter(name: str, declared: Sequence[Setting]) -> inspect.Parameter:
    setting = declared[0]
    choices = tuple(dict.fromkeys(choice for one in declared for choice in one.choices))
    text = _help(name, declared).replace("[", "\\[")  # which would be markup
    option = SHARING(setting.metavar, text, setting.flag, choices=choices, hidden=setting.is_advanced)
    annotation: object = Annotated[written_type(setting) | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _help(name: str, declared: Sequence[Setting]) -> str:
    """Its meaning, its choices, and the strategies that have it."""
    by_choices: dict[tuple[str, ...], list[str]] = {}
    for strategy, kind in KINDS.items():
        if (setting := kind.traits.setting(name)) is not None:
            by_choices.setdefault(setting.choices, []).append(strategy)
    if len(by_choices) > 1:
        parts = [f"{_listed(names)}: {', '.join(choices)}" for choices, names in by_choices.items()]
        return f"{declared[0].help} {'. '.join(parts)}. Default: {_default(declared)}."
    ((choices, owners),) = by_choices.items()
    allowed = f" One of: {', '.join(choices)}." if choices else ""
    return f"{declared[0].help}{allowed} For {_listed(owners)}. Default: {_default(declared)}."


def _listed(owners: Sequence[str]) -> str:
    """Names of strategies in few words: "sync, slowmo", "all but sync", "all *easgd"."""
    others = [strategy for strategy in KINDS if strategy not in owners]
    endings = [name[place:] for name in owners[:1] for place in range(len(name))]
    for ending in endings if len(owners) > 2 else ():
        if all(name.endswith(ending) for name in owners) and not any(name.endswith(ending) for name in others):
            return f"all *{ending}"
    return ", ".join(owners) if len(owners) <= len(others) else f"all but {', '.join(others)}"


def _default(declared: Sequence[Setting]) -> str:
    words = {setting.default_words.replace("`", "") for setting in declared}
    return words.pop() if len(words) == 1 else "by strategy"
