"""The findings of runs on this machine: its figures, nets' layer times, and how far predictions were off.

All are JSON files in one folder of the user. A file that is damaged counts as missing.
"""

import importlib
import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from samovar.core.device import FP32
from samovar.core.errors import InputError
from samovar.core.machine import NOMINAL, CalibrationRecord
from samovar.core.modules import is_installed
from samovar.core.plain import from_plain, to_plain
from samovar.launch.wishes import state_folder
from samovar.report.profile import Profile, load_profile
from samovar.report.result import Foreseen
from samovar.report.run_folder import write_json_atomic
from samovar.strategies.config import StrategyConfig
from samovar.strategies.sync import OWNERS
from samovar.strategies.traits import NONE

_MOST_PROFILES, _MOST_RUNS = 64, 256
_WHOLE = "-whole"
_QUIET_SHARE = 0.1  # of the cores, or less: then a measurement is of the net, and not of other programs


@dataclass(frozen=True, slots=True)
class ErrorBar:
    """How far predictions for one kind of cluster were off: |predicted / measured - 1| of a step's seconds."""

    num_runs: int
    median: float
    worst: float

    def __str__(self) -> str:
        return f"{self.median:.0%}, at most {self.worst:.0%}, in {self.num_runs} runs on this kind of cluster"


@dataclass(frozen=True, slots=True)
class Subject:
    """The key of a kept profile: the net, and how one worker computes it on the CPU."""

    net: str
    num_parameters: int
    threads: int
    precision: str = FP32

    @property
    def file_name(self) -> str:
        text = f"{self.net[:80]} {self.num_parameters} {self.threads} {self.precision}"
        return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")


@dataclass(frozen=True, slots=True)
class Ran:
    """A run that has ended: `strategy` settled, seconds of a mean step of all workers, and of how many steps.

    `batch_size` is that of one worker, 0 if it is not known. `collective` and `bucket_sizes_bytes` are those of the
    run, if known. `ranks_per_host` is the most on a host. `busy` is the share of this machine's cores that other
    programs took meanwhile, None if it is not known. `num_unlearned` of the subject's parameters are frozen, or
    statistics. `is_compressed` tells how a trial of compression ended, and `owner` the ranks that updated a bucket.
    """

    subject: Subject
    strategy: StrategyConfig
    workers: int
    ranks_per_host: int
    batch_size: float
    step_s: float
    num_steps: int
    collective: str = ""
    bucket_sizes_bytes: tuple[int, ...] = ()
    calibration: CalibrationRecord = NOMINAL
    busy: float | None = None
    num_unlearned: int = 0
    is_compressed: bool | None = None
    owner: str | None = None

    @property
    def sharing(self) -> StrategyConfig:
        """The strategy with the choices that were made in the run."""
        config = self.strategy
        if self.owner in OWNERS[NONE]:
            config = replace(config, overlap=NONE, owner=self.owner)
        if not config.may_stop_compressing:
            return config
        return replace(config, always_compresses=True) if self.is_compressed else replace(config, compress=None)


def is_quiet(busy: float | None) -> bool:
    """Whether a step time counts that was measured while others took this share; not if nobody looked."""
    return busy is not None and busy <= _QUIET_SHARE


class Kept:
    """The files in `folder`, which the first of them makes. None: nothing is kept. No call raises for the disk."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def keep_machine(self, record: CalibrationRecord) -> None:
        """The figures of `samovar doctor`."""
        self._write("machine.json", to_plain(record))

    def machine(self) -> CalibrationRecord | None:
        with suppress(ValueError, OverflowError):
            return from_plain(CalibrationRecord, self._read("machine.json"))
        return None

    def keep_profile(self, subject: Subject, profile: Profile, *, is_whole: bool = False) -> None:
        """Layers' times; `is_whole`: only those of the net as one layer. The oldest files go.

        Times of a busy machine are not kept: they replace none of a quiet one.
        """
        if not is_quiet(profile.busy):
            return
        self._write(f"profiles/{subject.file_name}{_WHOLE if is_whole else ''}.json", to_plain(profile))
        if self._folder is not None:
            with suppress(OSError):
                files = sorted((self._folder / "profiles").glob("*.json"), key=lambda path: -path.stat().st_mtime)
                for path in islice(files, _MOST_PROFILES, None):
                    path.unlink(missing_ok=True)

    def profile(self, subject: Subject) -> Profile | None:
        """The one by layers, if there is one. One that is not known to be of a quiet machine counts as missing."""
        if self._folder is None:
            return None
        for ending in ("", _WHOLE):
            with suppress(InputError):
                found = load_profile(self._folder / "profiles" / f"{subject.file_name}{ending}.json")
                if is_quiet(found.busy):
                    return found
        return None

    def keep_run(self, foreseen: Foreseen) -> None:
        """The oldest runs go. Of two runs that end at the same moment, one may be lost."""
        self._write("runs.json", {"runs": [*self._runs(), foreseen][-_MOST_RUNS:]})

    def error_bar(self, kind: str) -> ErrorBar | None:
        """Of the runs on this kind of cluster; None if there was none."""
        errors = [abs(one.error) for one in self._runs() if one.cluster == kind]
        return ErrorBar(len(errors), median(errors), max(errors)) if errors else None

    def _runs(self) -> list[Foreseen]:
        with suppress(ValueError, TypeError, KeyError, OverflowError):
            found = [from_plain(Foreseen, one) for one in self._read("runs.json")["runs"]]
            return [one for one in found if 0 < one.measured_s < math.inf and 0 < one.predicted_s < math.inf]
        return []

    def _read(self, name: str) -> Any:
        with suppress(OSError, ValueError, RecursionError):
            return json.loads((self._folder / name).read_bytes()) if self._folder is not None else None
        return None

    def _write(self, name: str, values: Mapping[str, object]) -> None:
        if self._folder is not None:
            path = self._folder / name
            with suppress(OSError, InputError):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json_atomic(path, values)


def foreseen(ran: Ran) -> Foreseen | None:
    """The run and its prediction, kept for later ones; see `samovar.predict.foresight.close_loop`.

    None without the packages of a simulation.
    """
    if not is_installed("greenlet"):
        return None
    # Only now: it imports the simulator.
    found: Foreseen | None = importlib.import_module("samovar.predict.foresight").close_loop(state_folder(), ran)
    return found
