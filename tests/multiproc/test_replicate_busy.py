"""Long work of one rank: the others wait beyond `timeout_s` as long as its heart beats, and no longer."""

import re
import sys
from pathlib import Path

import pytest

from tests.multiproc.command import Command
from tests.multiproc.ports import reserved_port
from tests.multiproc.replicate_busy_program import TIMEOUT_S
from tests.multiproc.test_join import started, variables_of

PROGRAM = Path(__file__).with_name("replicate_busy_program.py")
LONG_S, TEST_LIMIT_S = 2 * TIMEOUT_S, 200.0


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["sync", "local-sgd", "shm-easgd", "round-robin-easgd"])
@pytest.mark.parametrize("transport", ["shm", "tcp", "gloo"])
def test_others_wait_for_a_rank_that_is_busy(tmp_path: Path, transport: str, strategy: str) -> None:
    """With tcp and gloo as if each rank had a host of its own."""
    if (transport, strategy) == ("gloo", "round-robin-easgd"):
        pytest.skip("gloo has no windows, through which ranks pass the turn")
    flags = ("run", "-n", 2, "--transport", transport)
    with Command(*flags, PROGRAM, strategy, LONG_S, folder=tmp_path) as command:
        ended = command.wait(TEST_LIMIT_S)
    assert ended.return_code == 0, ended.errors
    assert sorted(ended.output.splitlines()) == ["[0] rank 0 finished", "[1] rank 1 finished"]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "error"), [("stopped", "rank 0 .* did not notify"), ("killed", "RankFailed.*rank 0")])
def test_silence_and_death_end_the_wait(tmp_path: Path, what: str, error: str) -> None:
    """Without a launcher, which would end the others."""
    program = (sys.executable, PROGRAM, "sync", 1000.0, what)
    with (
        reserved_port() as port,
        started([(program, variables_of(rank, 2, port), ()) for rank in range(2)], tmp_path) as ranks,
    ):
        errors = ranks[1].communicate(timeout=TEST_LIMIT_S)[1]
    last = errors.splitlines()[-1]
    assert re.search(error, last), errors
    assert "rank 1" in last
