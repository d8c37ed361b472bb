"""The names and settings of strategies that are written out for type checkers."""

from typing import Any, get_args, get_type_hints

import pytest

from samovar.strategies.catalog import STRATEGIES
from samovar.strategies.config import StrategyConfig
from samovar.strategies.ours import OURS, Settings, StrategyName


def test_what_is_written_out_for_type_checkers_is_what_strategies_declare() -> None:
    """Each setting in both spellings, and as a field of the configuration."""
    declared = {setting.name: setting for kind in OURS for setting in kind.traits.settings}
    types = get_type_hints(Settings)
    assert get_args(StrategyName) == STRATEGIES
    assert set(types) == {spelling for setting in declared.values() for spelling in setting.spellings}
    for setting in declared.values():
        for spelling in setting.spellings:
            assert setting.kind in (types[spelling], *get_args(types[spelling])), spelling
    fields = get_type_hints(StrategyConfig)
    assert set(fields) - set(declared) == {"name", "collective", "automatic_buckets", "own", "source"}
    for name, setting in declared.items():
        assert setting.kind in (fields[name], *get_args(fields[name])), name


@pytest.mark.parametrize("kind", OURS)
def test_every_strategy_says_what_travels_and_who_waits(kind: Any) -> None:
    assert kind.traits.exchange
    assert kind.traits.waits_for
    for setting in kind.traits.settings:
        assert setting.help.endswith(".")
        assert setting.default_words, setting.name
