"""`samovar.train` takes what the command takes."""

import inspect

from samovar.cli.train import train as command
from samovar.launcher.train import TrainSettings, train
from samovar.strategies.ours import Settings
from samovar.strategies.traits import declared_settings


def test_every_flag_of_the_command_is_an_argument() -> None:
    own = {name for name in inspect.signature(train).parameters if name != "settings"}
    flags = {"timeout_s" if name == "timeout" else name for name in inspect.signature(command([])).parameters}
    flags -= {"as_json", "_help_all", "hosts", "ssh"}  # of the terminal alone
    settings = set(declared_settings())
    assert own | set(TrainSettings.__annotations__) - set(Settings.__annotations__) == flags - settings


def test_every_setting_of_a_strategy_is_an_argument() -> None:
    spellings = {spelling for declared in declared_settings().values() for spelling in declared[0].spellings}
    assert set(Settings.__annotations__) <= spellings
