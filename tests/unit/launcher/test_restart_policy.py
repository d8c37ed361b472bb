"""Which deaths a run outlives whose workers wait for nobody."""

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from samovar.core.group import Host
from samovar.launch.processes import Launch, RankEnd
from samovar.launch.watch import Consequence
from samovar.launcher.restart_policy import InStepPolicy, RestartPolicy, blamed
from samovar.report.records import Failed, Notice, Record
from samovar.transports.shm import BoardWord, RunBoard, create_segment
from tests.unit.report.examples import RESULT, WORKER

PYTHON = [sys.executable, "-I", "-S", "-c"]
FOREVER = "import signal\nwhile True: signal.pause()"
LIVES = "import os, signal, time\nwith open('{lives}', 'a') as lives: lives.write('x')\n"
DIES = LIVES + "os.kill(os.getpid(), signal.SIGKILL)"
DIES_THRICE = LIVES + "if os.path.getsize('{lives}') < 4: os.kill(os.getpid(), signal.SIGKILL)"
OUTLIVES_TWO = (
    "import os, time\nwhile not os.path.exists('{lives}') or os.path.getsize('{lives}') < 2: time.sleep(0.01)"
)
OUTLIVES_THREE = OUTLIVES_TWO.replace("2", "4")


class Run:
    """Ranks that are small programs, watched as by `samovar train`; `failures` are what ranks told at their ends.

    Where they `get_on`, a rank shows a step more whenever it is started.
    """

    def __init__(
        self,
        folder: Path,
        programs: Sequence[str],
        failures: dict[int, Failed],
        may_restart: bool = True,
        group_size: int = 1,
        get_on: bool = False,
    ) -> None:
        world_size, lives = len(programs), folder / "lives"
        self.shown: list[Record] = []
        self._descriptor = create_segment(world_size)
        self.board = RunBoard(self._descriptor, world_size)
        self.policy = RestartPolicy(world_size, may_restart, failures, self.board, self.shown.append, group_size)

        def command(rank: int, _pipe: int) -> list[str]:
            self.board.post(rank, BoardWord.STEPS_DONE, self.board.read(rank, BoardWord.STEPS_DONE) + get_on)
            return [*PYTHON, programs[rank].replace("{lives}", str(lives))]

        self._launch = Launch(
            command,
            {rank: folder / f"{rank}.log" for rank in range(world_size)},
            self.board,
            [],
            lambda _rank, _data: None,
            policy=self.policy,
        )

    def ends(self) -> list[RankEnd]:
        try:
            return self._launch.run()
        finally:
            self.close()

    def close(self) -> None:
        os.close(self._descriptor)

    @property
    def words(self) -> list[str]:
        return [record.text.rpartition(", and ")[2] for record in self.shown if isinstance(record, Notice)]


def failed(rank: int, kind: str) -> Failed:
    return Failed(rank=rank, message=f"rank {rank}: sorry", step=None, exit_code=2, kind=kind)


def test_a_killed_rank_that_gets_nowhere_is_started_again_once_and_the_others_go_on(tmp_path: Path) -> None:
    run = Run(tmp_path, [OUTLIVES_TWO, DIES], {})
    assert run.ends() == [RankEnd(1, -9), RankEnd(0, 0)]
    assert (tmp_path / "lives").read_text() == "xx"
    assert run.words == ["it starts again from the center", "it does not come back"]
    assert [run.board.read(rank, BoardWord.IS_GONE) for rank in range(2)] == [0, 1]


def test_a_killed_rank_that_gets_on_is_started_again_each_time_and_the_result_says_so(tmp_path: Path) -> None:
    run = Run(tmp_path, ["", DIES_THRICE], {}, get_on=True)
    assert sorted(run.ends(), key=lambda end: end.rank) == [RankEnd(0, 0), RankEnd(1, 0)]
    assert (tmp_path / "lives").read_text() == "xxxx"
    assert run.words == ["it starts again from the center"] * 3
    counted = run.policy.counted(replace(RESULT, by_worker=(WORKER, WORKER)))
    assert [worker.restarts for worker in counted.by_worker] == [0, 3]


def test_a_group_comes_back_whole_with_its_first_dead_as_long_as_it_gets_on(tmp_path: Path) -> None:
    """Rank 3 ends in the fourth life of rank 2."""
    run = Run(tmp_path, ["", "", DIES_THRICE, OUTLIVES_THREE], {}, group_size=2, get_on=True)
    assert sorted(run.ends(), key=lambda end: end.rank) == [RankEnd(rank, 0) for rank in range(4)]
    assert (tmp_path / "lives").read_text() == "xxxx"
    assert run.words == ["its own, ranks 2 and 3, starts again from the center"] * 3
    assert [run.policy.life(rank) for rank in range(4)] == [0, 0, 3, 3]


def test_a_group_that_gets_nowhere_leaves_whole_and_other_groups_go_on(tmp_path: Path) -> None:
    """Rank 3 would wait for ever."""
    run = Run(tmp_path, [OUTLIVES_TWO, OUTLIVES_TWO, DIES, FOREVER], {}, group_size=2)
    assert sorted(run.ends(), key=lambda end: end.rank) == [
        *(RankEnd(k, 0) for k in (0, 1)),
        *(RankEnd(k, -9) for k in (2, 3)),
    ]
    ends = [f"its own, ranks 2 and 3, {what}" for what in ("starts again from the center", "does not come back")]
    assert run.words == ends
    assert [run.board.read(rank, BoardWord.IS_GONE) for rank in range(4)] == [0, 0, 1, 1]


def test_a_run_ends_with_its_last_group(tmp_path: Path) -> None:
    run = Run(tmp_path, [FOREVER, DIES], {}, may_restart=False, group_size=2)
    assert run.ends() == [RankEnd(1, -9)]
    assert run.shown == []


def test_a_group_does_not_come_back_without_those_that_have_finished(tmp_path: Path) -> None:
    """No rank is started here: what the launcher would be told."""
    run = Run(tmp_path, [FOREVER] * 4, {}, group_size=2)
    assert run.policy.consequence(RankEnd(2, 0)) == Consequence(ended=[])
    assert run.policy.consequence(RankEnd(3, -9)) == Consequence(ended=[2])
    assert run.policy.consequence(RankEnd(1, -9)) == Consequence(counts=False, ended=[0])
    assert run.policy.consequence(RankEnd(0, -9)) == Consequence(counts=False, started=range(2))
    run.close()


def test_a_rank_that_cannot_come_back_alone_is_gone_at_once(tmp_path: Path) -> None:
    run = Run(tmp_path, ["", DIES], {}, may_restart=False)
    assert sorted(run.ends(), key=lambda end: end.rank) == [RankEnd(0, 0), RankEnd(1, -9)]
    assert (tmp_path / "lives").read_text() == "x"


def test_a_rank_that_gives_up_is_not_started_again(tmp_path: Path) -> None:
    run = Run(tmp_path, ["", "raise SystemExit(3)"], {1: failed(1, "DeadlineExceeded")})
    assert sorted(run.ends(), key=lambda end: end.rank) == [RankEnd(0, 0), RankEnd(1, 3)]
    (notice,) = run.shown
    assert isinstance(notice, Notice)
    assert notice.text == "rank 1: sorry after step 0; the others continue, and it does not come back"


def test_others_may_need_the_first_weights_of_the_rank_that_is_gone(tmp_path: Path) -> None:
    for steps, go_on in ((0, "continue if the center has its first weights"), (1, "continue")):
        run = Run(tmp_path, ["raise SystemExit(3)", ""], {0: failed(0, "DeadlineExceeded")})
        run.board.post(1, BoardWord.STEPS_DONE, steps)
        run.ends()
        (notice,) = run.shown
        assert isinstance(notice, Notice)
        assert notice.text == f"rank 0: sorry after step 0; the others {go_on}, and it does not come back"


def test_wrong_input_ends_all_and_is_what_is_told(tmp_path: Path) -> None:
    failures = {1: failed(1, "InputError")}
    run = Run(tmp_path, [FOREVER, "raise SystemExit(2)"], failures)
    ends = run.ends()
    assert ends == [RankEnd(1, 2)]
    assert run.shown == []
    assert blamed([RankEnd(0, -9), *ends], failures, lambda _: 0)[0].rank == 1


def test_the_first_rank_with_weights_that_are_not_finite_is_awaited_and_blamed(tmp_path: Path) -> None:
    run = Run(tmp_path, ["", ""], {})
    told = {1: failed(1, "NotFinite")}
    policy, end = InStepPolicy(told, 100.0, run.board, range(2)), RankEnd(1, 4)
    assert policy.patience_s(end) == 0.0, "ranks that are as far wait for it"
    run.board.post(1, BoardWord.STEPS_DONE, 11)
    run.board.post(0, BoardWord.STEPS_DONE, 10)
    assert policy.patience_s(end) > 0.0, "its weights may be those of rank 0"
    told[0] = failed(0, "NotFinite")
    assert policy.patience_s(end) == 0.0
    assert blamed([end], told, lambda rank: run.board.read(rank, BoardWord.STEPS_DONE))[0] == RankEnd(0, 2), "not ended"
    ends = blamed([end, RankEnd(0, 4)], told, lambda rank: run.board.read(rank, BoardWord.STEPS_DONE))
    assert [one.rank for one in ends] == [0, 1]
    run.close()


def test_a_rank_that_is_aborted_for_the_end_of_another_is_not_blamed(tmp_path: Path) -> None:
    """MPICH aborts a rank that misses another, and tells nobody why."""
    run = Run(tmp_path, ["", ""], {})
    policy, aborted, killed = InStepPolicy({}, 100.0, run.board, range(2)), RankEnd(0, -6), RankEnd(1, -9)
    assert policy.patience_s(aborted) == 10.0, "a tenth of the timeout"
    assert blamed([aborted, killed, RankEnd(2, 0)], {}, lambda _: 0) == [killed, aborted, RankEnd(2, 0)]
    assert blamed([aborted], {}, lambda _: 0) == [aborted]
    run.close()


def test_a_run_ends_with_its_last_rank(tmp_path: Path) -> None:
    run = Run(tmp_path, [DIES, DIES], {}, may_restart=False)
    assert sorted(run.ends(), key=lambda end: end.rank) == [RankEnd(0, -9), RankEnd(1, -9)]
    assert run.words == ["it does not come back"]


def test_on_several_hosts_ranks_have_their_hosts_names_and_the_others_learn_of_them(tmp_path: Path) -> None:
    """Host 0's rank is the one that the run needs. No rank is started here."""
    run, hosts, told = Run(tmp_path, [FOREVER] * 3, {}), (Host("node0", (0,)), Host("node1", (1, 2))), []
    policy = RestartPolicy(
        *(3, True, {}, run.board, run.shown.append),
        hosts=hosts,
        tells=lambda ranks, are_gone: told.append((list(ranks), are_gone)),
    )
    assert policy.consequence(RankEnd(1, -9)) == Consequence(counts=False, started=range(1, 2))
    assert policy.consequence(RankEnd(2, 3)) == Consequence(ended=[])
    assert told == [([1], False), ([2], True)]
    assert [record.text[:16] for record in run.shown if isinstance(record, Notice)] == [
        "rank 1 on node1 ",
        "rank 2 on node1 ",
    ]
    assert policy.patience_s(RankEnd(2, 3)) == math.inf
    policy.changed([0], are_gone=True)
    assert policy.patience_s(RankEnd(2, 3)) == 0.0
    assert [run.board.read(rank, BoardWord.IS_GONE) for rank in range(3)] == [1, 0, 1]
    run.close()
