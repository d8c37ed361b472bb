"""A launch of small programs as ranks."""

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from samovar.launch.processes import DEFAULT_EFFECTS, Launch, RankEnd, SignalEffect
from samovar.transports.shm import RunBoard, create_segment

PYTHON = [sys.executable, "-I", "-S", "-c"]


class Started:
    """A launch of ranks that are small programs; `{pipe}` in a program is the rank's pipe."""

    def __init__(
        self,
        folder: Path,
        programs: Sequence[str],
        threads_per_worker: int = 1,
        inherited: Sequence[int] = (),
        on_output: Callable[[int, bytes], None] | None = None,
        python: Sequence[Sequence[str]] = (PYTHON, PYTHON, PYTHON),
        command: Callable[[int, int], Sequence[str]] | None = None,
        may_fork: bool = False,
        effects: Mapping[int, SignalEffect] = DEFAULT_EFFECTS,
    ) -> None:
        self.segment = create_segment(len(programs))
        self.outputs: defaultdict[int, bytes] = defaultdict(bytes)
        self.logs = [folder / f"{rank}.log" for rank in range(len(programs))]
        self.launch = Launch(
            command=command or (lambda rank, pipe: [*python[rank], programs[rank].replace("{pipe}", str(pipe))]),
            board=RunBoard(self.segment, len(programs)),
            inherited=[self.segment, *inherited],
            log_paths=dict(enumerate(self.logs)),
            threads_per_worker=threads_per_worker,
            on_output=on_output or self.take,
            may_fork=may_fork,
            effects=effects,
        )

    def take(self, rank: int, data: bytes) -> None:
        self.outputs[rank] += data

    def run(self) -> list[RankEnd]:
        try:
            return self.launch.run()
        finally:
            os.close(self.segment)
