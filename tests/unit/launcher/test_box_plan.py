"""The messages of a run at a box before it starts."""

from pathlib import Path

import pytest

from samovar.box.endpoints import Endpoints
from samovar.box.joining import Endpoint
from samovar.launcher.box_plan import buffer_name, drop_command

DEFAULT = Endpoint("default", None, None)
FAR = Endpoint(None, ("host0", 4711), Path("key"))


@pytest.mark.parametrize(
    ("net_name", "name"),
    [("lenet_digits", "lenet_digits"), ("Alex Net/v2.1", "Alex-Net-v2.1"), ("-_.", "net"), ("x" * 70, "x" * 64)],
)
def test_a_net_gives_its_name_to_its_buffer(net_name: str, name: str) -> None:
    assert buffer_name(net_name) == name


@pytest.mark.parametrize(
    ("boxes", "flags"),
    [
        ([DEFAULT], ""),
        ([Endpoint("mine", None, None)], " --box mine"),
        ([FAR], " --box host0:4711 --key-file key"),
        ([Endpoint(None, ("::1", 4711), Path("key"))], " --box [::1]:4711 --key-file key"),
        ([DEFAULT, FAR], " --box default,host0:4711 --key-file key"),
    ],
)
def test_the_command_that_deletes_a_buffer_can_be_copied(boxes: list[Endpoint], flags: str) -> None:
    assert drop_command(Endpoints(tuple(boxes)), "net") == f"samovar box drop net{flags}"
