"""A failing case is told as a short schedule, which fails in the same way when it is played again."""

import re
from dataclasses import replace
from random import Random

import pytest

from tests.sim.elastic import ElasticCase, WrongSum, run_elastic
from tests.sim.elastic_mistakes import SaysYes
from tests.sim.script import Script
from tests.sim.shrink import Shrinker, story


def play(case: ElasticCase, script: Script) -> None:
    run_elastic(case, SaysYes, script)


def first_failure() -> tuple[ElasticCase, Exception, Script]:
    """The first seed that finds the mistake, with several faults."""
    for seed in range(100):
        case = ElasticCase.of_seed(seed)
        script = Script(seed)
        try:
            play(case, script)
        except WrongSum as error:
            if len(script.happened) > 4:
                return case, error, script
    raise AssertionError("no seed finds it")


def test_the_story_of_a_planted_mistake_is_a_few_sentences_and_repeats_it() -> None:
    case, error, script = first_failure()
    told = story(play, case, error, script.happened)
    head, *faults, end, repeat = told.splitlines()
    assert re.fullmatch(rf"the shortest schedule .* of {len(script.happened)} faults, after \d+ plays:", head)
    assert 1 <= len(faults) <= 3, told
    assert all(re.fullmatch(r"\d\. rank \d+ (dies|leaves|is stopped|computes) .*", fault) for fault in faults), told
    assert end.startswith("It ends with WrongSum: ")
    only = re.findall(r"--only=([\w,]+)$", repeat)[0]
    with pytest.raises(WrongSum):
        play(replace(case, only=only), Script(case.seed, only))
    run_elastic(case)  # it is the mistake, and not the fault


def test_all_faults_that_are_needed_are_kept_and_no_others() -> None:
    def fails_with(needed: set[str]):
        def played(_case: ElasticCase, script: Script) -> None:
            for name in names:
                script.keeps(name)
            if needed <= set(script.happened.values()):
                raise WrongSum

        return played

    names = [f"fault {number}" for number in range(12)]
    script = Script(0)
    for name in names:
        script.keeps(name)
    by_sentence = {sentence: name for name, sentence in script.happened.items()}
    case = ElasticCase.of_seed(0)
    for size in (0, 1, 2, 5, 12):
        needed = set(Random(size).sample(names, size))
        found = Shrinker(fails_with(needed), case, WrongSum).shortest(list(script.happened))
        assert set(found) == {by_sentence[sentence] for sentence in needed}


def test_another_error_is_another_failure() -> None:
    def played(_case: ElasticCase, script: Script) -> None:
        raise (WrongSum if script.keeps("a") else KeyError)

    script = Script(0)
    assert script.keeps("a")
    assert Shrinker(played, ElasticCase.of_seed(0), WrongSum).shortest(list(script.happened)) == list(script.happened)
