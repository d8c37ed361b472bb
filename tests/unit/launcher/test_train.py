"""`samovar.train` takes what the command takes."""

import inspect
from pathlib import Path

import pytest

from samovar.cli.train import train as command
from samovar.core.errors import DeadlineExceeded
from samovar.launcher.train import TrainSettings, train
from samovar.strategies.ours import Settings
from samovar.strategies.traits import declared_settings
from samovar.transports.keys import make_key
from tests.multiproc.nets import write_net, write_solver
from tests.multiproc.ports import reserved_port


def test_every_flag_of_the_command_is_an_argument() -> None:
    own = {name for name in inspect.signature(train).parameters if name != "settings"}
    flags = {"timeout_s" if name == "timeout" else name for name in inspect.signature(command([])).parameters}
    flags -= {"as_json", "_help_all", "hosts", "ssh"}  # of the terminal alone
    settings = set(declared_settings())
    assert own | set(TrainSettings.__annotations__) - set(Settings.__annotations__) == flags - settings


def test_every_setting_of_a_strategy_is_an_argument() -> None:
    spellings = {spelling for declared in declared_settings().values() for spelling in declared[0].spellings}
    assert set(Settings.__annotations__) <= spellings


def test_the_key_of_hosts_that_a_launcher_tells_is_an_argument_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two processes of torchrun looks for the first one with it."""
    make_key(tmp_path / "job.key")
    with reserved_port() as port:
        told = {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in told.items():
            monkeypatch.setenv(name, str(value))
        with pytest.raises(DeadlineExceeded, match=r"host 0 at 127.0.0.1:\d+ cannot be reached within 0.2 s"):
            train(write_solver(write_net(tmp_path, tmp_path)), key_file=tmp_path / "job.key", timeout_s=0.2)
