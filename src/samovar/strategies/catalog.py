"""Our own strategies in their order, which an import of this module declares; and how a run asks for one."""

from collections.abc import Iterable, Mapping
from typing import Any

from samovar.core.errors import InputError, nearest
from samovar.strategies.config import StrategyConfig, declared_as, parse_bucket
from samovar.strategies.ours import OURS
from samovar.strategies.settings import COMPRESS
from samovar.strategies.sync import BUCKET
from samovar.strategies.traits import AUTO, KINDS, NONE, declared_settings

for _kind in OURS:  # whatever was imported first
    KINDS[_kind.traits.name] = KINDS.pop(_kind.traits.name)
STRATEGIES = tuple(kind.traits.name for kind in OURS)


def asked_for(name: str, collective: str, given: Mapping[str, Any]) -> StrategyConfig:
    """The strategy that flags, or arguments of `samovar.train`, ask for.

    A strategy without buckets ignores --bucket auto, the default; one that cannot compress ignores --compress none.
    """
    settings = {setting: value for setting, value in given.items() if value is not None}
    bucket = settings.pop(BUCKET.name, AUTO)
    size = None if bucket == AUTO else parse_bucket(bucket, "'auto', 'model', 'layer'")
    if settings.get(COMPRESS.name) == NONE:
        del settings[COMPRESS.name]
    kind = KINDS.get(declared_as(name)[1] if ":" in name else name)
    is_automatic = bucket == AUTO and kind is not None and kind.traits.setting(BUCKET.name) is not None
    others = {"collective": collective, BUCKET.name: size, "automatic_buckets": is_automatic}
    return StrategyConfig.given(name, settings, **others)


def by_name(settings: Mapping[str, Any], who: str, others: Iterable[str]) -> dict[str, Any]:
    """Settings by name, from either spelling. Raises InputError, which begins with `who`, if one is given in both.

    It is raised for one that no strategy has, too, and names the nearest among settings and `others`.
    """
    names = {spelling: name for name, own in declared_settings().items() for spelling in own[0].spellings}
    given: dict[str, Any] = {}
    for spelling, value in settings.items():
        if spelling not in names:
            raise InputError(f"{who}: there is no argument {spelling}; {nearest(spelling, [*names, *others])}")
        name = names[spelling]
        if name in given:
            raise InputError(f"{who}: {spelling} is another spelling of {name}; give one of them")
        given[name] = value
    return given
