"""Where host 0 is met: told over the store of torchrun's agent, for each run anew."""

import pytest

from samovar.core.clock import Deadline
from samovar.launch import agent_store
from samovar.transports.torch_dist import open_store
from tests.multiproc.ports import reserved_port


def test_a_second_run_does_not_get_the_place_of_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    with reserved_port() as port:
        deadline = Deadline.after(10.0)
        store = open_store("127.0.0.1", port, serves=True, listen_descriptor=None, who="agent", deadline=deadline)
        common = ["127.0.0.1", str(port), "torchrun 0"]
        agent_store.main([*common, "0", "10", "1111 10.0.0.1"])
        agent_store.main([*common, "1", "10"])
        with pytest.raises(SystemExit, match="did not come"):
            agent_store.main([*common, "1", "0.5"])
    assert capsys.readouterr().out == "1111 10.0.0.1"
    del store
