"""Finished runs, kept in git: a line of JSON for each in benchmarks/results/NAME.jsonl.

A line has the run's title and seed, the settings of its strategy, the day, the commit, the machine, and the tests as
[samples, accuracy or loss, seconds of training]. A run counts as finished while its strategy has the settings of its
line. So a change of a recipe asks for new runs, and a change of code that moves the results must remove their lines.
"""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from learned import Test
from ranks import FOLDER

from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import by_recipe, resolved

RESULTS = FOLDER / "results"
_SOURCES = ("src", "native", "examples/zoo", "benchmarks/*.py")
_SEED, _TITLE = "seed", "title"
Line = dict[str, Any]


@dataclass(frozen=True)
class Finished:
    """The finished runs in a file. With `makes_none` no other is made."""

    file: Path
    makes_none: bool = False

    def tests(
        self, title: str, seed: int, settings: Mapping[str, object], make: Callable[[], Sequence[Test]]
    ) -> list[Test] | None:
        """The tests of that run with these settings; else those of `make`, which are kept, or None."""
        line = next((line for line in self.lines() if (line[_TITLE], line[_SEED]) == (title, seed)), None)
        if line is None or line["settings"] != settings:
            if self.makes_none:
                return None
            line = {_TITLE: title, _SEED: seed, "settings": dict(settings), **_origin()}
            line["tests"] = [[round(test.samples), round(test.value, 4), round(test.seconds, 3)] for test in make()]
            self._keep(line)
        return [Test(samples, value, seconds or 0.0) for samples, value, seconds in line["tests"]]

    def lines(self) -> list[Line]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []

    def _keep(self, line: Line) -> None:
        """In the place of an older run with that title and seed."""
        others = [other for other in self.lines() if (other[_TITLE], other[_SEED]) != (line[_TITLE], line[_SEED])]
        in_order = sorted([*others, line], key=lambda one: (one[_TITLE], one[_SEED]))
        self.file.parent.mkdir(exist_ok=True)
        partial_file = self.file.with_suffix(".partial")
        partial_file.write_text("".join(f"{json.dumps(one)}\n" for one in in_order))
        partial_file.rename(self.file)


def settings_of(
    strategy: str, num_workers: int, with_recipe: bool = True, *, is_adaptive: bool = False
) -> dict[str, object]:
    """The settings that are not off, and the factor of the learning rate if it is not 1."""
    config = StrategyConfig(strategy)
    chosen = resolved(by_recipe(config, num_workers, is_adaptive=is_adaptive) if with_recipe else config, num_workers)
    found = {setting.name: chosen[setting.name] for setting in config.traits.settings}
    recipe = config.traits.recipe
    rate = recipe.rate_factor(chosen, num_workers, is_adaptive=is_adaptive) if recipe and with_recipe else 1.0
    found |= {} if rate == 1.0 else {"rate_factor": rate}
    return {name: value for name, value in found.items() if value and value != "none"}


def _origin() -> Line:
    """When and where a run begins."""
    root = FOLDER.parent
    commit = _git(root, "rev-parse", "--short", "HEAD")
    changed = " with changes" if _git(root, "status", "--porcelain", "--", *_SOURCES) else ""
    cores = len(os.sched_getaffinity(0))
    machine = f"{cores} cores, load {os.getloadavg()[1]:.0f} at the start"
    return {"began": f"{datetime.now(UTC):%F %R}", "commit": commit + changed, "machine": machine}


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=False, capture_output=True, text=True).stdout.strip()
