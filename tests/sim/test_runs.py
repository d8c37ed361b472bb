"""Runs of every strategy under faults, seed by seed."""

from dataclasses import replace

import pytest

from samovar.strategies.catalog import STRATEGIES
from tests.sim.center_runs import run_strategy
from tests.sim.run_mistakes import RUN_MISTAKES, RunMistake
from tests.sim.runs import LIVENESS, SAFETY, RunCase
from tests.sim.script import Script

NUM_SEEDS, BLOCK = 1000, 100
NUM_SEEDS_TO_FIND = 40
FIRSTS = [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(BLOCK, NUM_SEEDS, BLOCK))]
KINDS_OF_FAULTS = (
    " as slowly",
    " is stopped ",
    " longer",
    " is lost",
    " cut off ",
    " dies ",
    " not a number",
    " full ",
)


@pytest.mark.parametrize("first", FIRSTS)
def test_no_seed_finds_a_wrong_weight_or_a_run_without_end(first: int) -> None:
    for seed in range(first, first + BLOCK):
        run_strategy(RunCase.of_seed(seed))


def test_seeds_cover_every_strategy_mode_and_fault_and_repeat() -> None:
    cases = [RunCase.of_seed(seed) for seed in range(BLOCK)]
    assert {case.strategy for case in cases} == set(STRATEGIES)
    assert {case.mode for case in cases} == {SAFETY, LIVENESS}
    scripts = [Script(case.seed) for case in cases[:30]]
    runs = [run_strategy(case, script=script) for case, script in zip(cases, scripts, strict=False)]
    sentences = [sentence for script in scripts for sentence in script.happened.values()]
    assert all(any(kind in sentence for sentence in sentences) for kind in KINDS_OF_FAULTS), sentences
    assert [run_strategy(case).event_hash for case in cases[:6]] == [run.event_hash for run in runs[:6]]


def test_without_faults_all_train_to_the_end() -> None:
    for strategy in STRATEGIES:
        run = run_strategy(RunCase(3, strategy, "tree", 4, 20, SAFETY, ""))
        assert [ended.error for ended in run.results] == [None] * 4


@pytest.mark.parametrize("name", RUN_MISTAKES)
def test_a_planted_mistake_is_found(name: str) -> None:
    with pytest.raises(AssertionError) as found:
        play(RUN_MISTAKES[name])
    assert any("to repeat: python tools/simulate.py --of runs --seed" in note for note in found.value.__notes__)


def play(mistake: RunMistake) -> None:
    for seed in range(NUM_SEEDS_TO_FIND):
        run_strategy(replace(RunCase.of_seed(seed), strategy=mistake.strategy), mistake.parts)
