"""A rank that ends, well or badly, is noticed by the others of its host at once, not after `timeout_s`."""

import re
import sys
from pathlib import Path

import pytest

from tests.multiproc.command import run
from tests.multiproc.ports import reserved_port
from tests.multiproc.script_run import run_script, write_script
from tests.multiproc.test_join import started, variables_of

PROGRAM = "tests.multiproc.replicate_death_program"
RESTART_PROGRAM = Path(__file__).with_name("replicate_restart_program.py")
NUM_RANKS, VICTIM = 3, 1
TEST_LIMIT_S = 100.0  # less than the ranks' own limit of 120 s for a wait
BEFORE = "before its work was done"
KINDS = {
    "killed": (f"was killed by signal 9 (SIGKILL) {BEFORE}", f"is gone (killed, or ended by os._exit) {BEFORE}"),
    "exit": (f"ended with exit code 0 {BEFORE}", f"left {BEFORE}"),
    "os._exit": (f"ended with exit code 3 {BEFORE}", f"is gone (killed, or ended by os._exit) {BEFORE}"),
    "exception": ("ended with BadData: sample 7 of rank 1 is bad; see its log",),
}


@pytest.mark.parametrize(
    "how", [how if how != "os._exit" else pytest.param(how, marks=pytest.mark.slow) for how in KINDS]
)
def test_others_name_a_rank_that_ended(how: str) -> None:
    """No launcher ends them. Older systems do not tell the exit code of a process to others."""
    program = (sys.executable, "-m", PROGRAM, how, VICTIM, 20)
    with (
        reserved_port() as port,
        started([(program, variables_of(rank, NUM_RANKS, port), ()) for rank in range(NUM_RANKS)]) as ranks,
    ):
        said = [rank.communicate(timeout=TEST_LIMIT_S)[0] for rank in ranks]
    victim = f"rank {VICTIM} (process {ranks[VICTIM].pid})"
    for number in {*range(NUM_RANKS)} - {VICTIM}:
        error = said[number].splitlines()[-1]
        assert re.match(r"RankFailed at [0-9.]+: ", error), said
        assert any(f": rank {number}: {victim} {words}" in error for words in KINDS[how]), error
        assert ranks[number].returncode == 3


AS_SCRIPT = """
import runpy
sys.path.insert(0, {root!r})
runpy.run_module({program!r}, run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("exit", 3, "left before its work was done|ended with exit code 0 before its work was done"),
        ("killed", 137, r"was killed by signal 9 \(SIGKILL\)"),
        ("os._exit", 3, "ended with exit code 3"),
        ("exception", 1, "BadData: sample 7 of rank 1 is bad"),
    ],
)
def test_the_launcher_names_a_rank_that_ended(
    repository_root: Path, tmp_path: Path, how: str, code: int, words: str
) -> None:
    script = AS_SCRIPT.format(root=str(repository_root), program=PROGRAM)
    ended = run_script(tmp_path, script, NUM_RANKS, "--oversubscribe", arguments=(how, VICTIM, 20))
    assert ended.return_code == code, ended.errors
    said = ended.output + ended.errors
    assert re.search(rf"(?s)rank {VICTIM} .*({words})|\[{VICTIM}\] .*({words})", said), said


RESTARTED = """
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
tell(f"lives-{attempt}")
await_all(f"lives-{attempt}")
if rank == 1 and attempt < 2:
    os.kill(os.getpid(), signal.SIGKILL)
print("attempt", attempt)
"""


@pytest.mark.parametrize(("most", "code"), [(2, 0), (1, 137)])
def test_failed_ranks_are_started_again(tmp_path: Path, most: int, code: int) -> None:
    ended = run_script(tmp_path, RESTARTED, 2, "--max-restarts", most)
    assert ended.return_code == code, ended.errors
    for number in range(1, most + 1):
        assert f"all are started again (restart {number} of {most})" in ended.errors
    assert ("attempt 2" in ended.output) == (code == 0)


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 3])
def test_a_restarted_job_has_the_bits_of_one_that_was_never_killed(tmp_path: Path, kills: int) -> None:
    """It goes on after the last step that all ranks have saved."""
    folders = {kills: tmp_path / "killed", 0: tmp_path / "whole"}
    for number, folder in folders.items():
        folder.mkdir()
        ended = run("run", "-n", 2, "--max-restarts", 3, RESTART_PROGRAM, number, folder=folder)
        assert ended.return_code == 0, ended.errors
        assert ended.errors.count("all are started again") == number
        begun = re.findall(r"\[\d\] attempt \d begins after step (\d+)", ended.output)
        assert len(begun) == number + 1
        assert [int(step) > 0 for step in begun] == [False, *[True] * number]
    for rank in range(2):
        killed, whole = ((folder / f"weights-{rank}").read_bytes() for folder in folders.values())
        assert killed == whole


@pytest.mark.parametrize("flags", [("--max-restarts", 1), ("--keep-going",)])
def test_restarts_are_for_one_host(tmp_path: Path, flags: tuple[object, ...]) -> None:
    hosts = ("--nodes", 2, "--node-rank", 0, "--master-addr", "localhost", "--master-port", 29500)
    ended = run("run", "-n", 1, *flags, *hosts, write_script(tmp_path, ""), folder=tmp_path)
    assert ended.return_code == 2
    assert f"{flags[0]} is for one host" in ended.errors
