"""Where host 0 is met: told over the store of torchrun's agent, for each run again."""

import pytest

from samovar.launch import agent_store
from tests.unit.transports.three_hosts import serve


@pytest.fixture(scope="module", autouse=True)
def first_store() -> None:
    """A process's first store opens a pipe that libuv keeps: before the leak check takes stock."""
    serve()


def test_a_second_run_does_not_get_the_place_of_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    store, port = serve()
    common = ["127.0.0.1", str(port), "torchrun 0"]
    agent_store.main([*common, "0", "10", "1111 10.0.0.1"])
    agent_store.main([*common, "1", "10"])
    with pytest.raises(SystemExit, match="did not come"):
        agent_store.main([*common, "1", "0.5"])
    assert capsys.readouterr().out == "1111 10.0.0.1"
    del store
