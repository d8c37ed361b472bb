"""Commands and ranks as forks of a process that has loaded torch are what those are that start anew."""

import re
from pathlib import Path

import pytest

from tests.multiproc.command import Command, Ended, metrics_of, result_of, run
from tests.multiproc.nets import write_net, write_solver
from tests.multiproc.replicate_ranks import run_ranks


@pytest.mark.slow
def test_a_run_has_the_same_bits_and_output(digits: Path, tmp_path: Path) -> None:
    words = ("train", "--solver", write_solver(write_net(tmp_path, digits), 5), "--workers", 2, "--out")
    with Command(*words, "anew", folder=tmp_path) as command:
        anew = command.wait()
    forked = run(*words, "forked", folder=tmp_path)
    assert shape_of(forked, "forked") == shape_of(anew, "anew")
    outs = tmp_path / "forked", tmp_path / "anew"
    assert len({result_of(out)["weights_sha256"] for out in outs}) == 1
    assert [line["loss"] for line in metrics_of(outs[0])] == [line["loss"] for line in metrics_of(outs[1])]


def shape_of(ended: Ended, out: str) -> tuple[int, str, str]:
    """Its code, and its output without figures, the name of its folder, and what took its time."""
    output = re.sub("where the time went: .*", "where the time went", ended.output.replace(out, "out"))
    return ended.return_code, re.sub(r" *[0-9.,]+ *", " N ", output), ended.errors


def test_a_rank_program_that_fails_is_named() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"rank [01]: (.|\n)*KeyError: 'no such scenario'"):
        run_ranks("tests.multiproc.replicate_recipe_rank", 2, "no such scenario")
