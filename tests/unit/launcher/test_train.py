"""`samovar.train` takes what the command takes."""

import inspect

from samovar.cli.train import train as command
from samovar.launcher.train import StrategySettings, TrainSettings, train
from samovar.strategies.config import StrategyConfig, in_python

# The command's words for what Python has other ones for.
NAMES = {"timeout": "timeout_s", "compress_always": "always_compresses"}


def test_every_flag_of_the_command_is_an_argument() -> None:
    own = [name for name in inspect.signature(train).parameters if name not in ("quiet", "settings")]
    flags = [f"--{name.replace('_', '-')}" for name in inspect.signature(command).parameters]
    named = [in_python(flag).removeprefix("--").replace("-", "_") for flag in flags]
    assert sorted([*own, *TrainSettings.__annotations__]) == sorted(NAMES.get(name, name) for name in named)


def test_the_strategys_settings_are_all_that_a_run_can_have() -> None:
    """`factors` are of `replicate` alone; a cut that others find is bucket_size "auto"."""
    fields = set(StrategyConfig.__dataclass_fields__) - {"name", "factors", "automatic_buckets", "bucket_size_bytes"}
    assert set(StrategySettings.__annotations__) == fields | {"bucket_size"}
