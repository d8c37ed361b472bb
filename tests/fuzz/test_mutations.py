"""Hundreds of mutated inputs, read by what the commands call: each is refused in one sentence, or read rightly.

No crash, no traceback, no hang, less than 1 GiB, and nothing opened for writing. The kinds are read in processes of
their own, several inputs in each; importing torch costs more than most of them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.campaigns import CAMPAIGNS, NUM_BLOCKS
from tests.fuzz.case import READ, REFUSED
from tests.fuzz.cases import KINDS, cases_of

ROOT = Path(__file__).parents[2]
MOST_MEMORY_KIB = 1 << 20
MOST_CHARACTERS = 1010  # of a sentence: a name of 10 MB is not repeated
NUM_CASES = 1000
SMALL_KINDS = ("mean", "mean_npy", "datum", "idx", "solverstate", "tensors")
LARGE_KINDS = ("caffemodel", "solver", "net", "data")

Told = dict[str, Any]


@pytest.mark.timeout(600)
def test_small_inputs(tmp_path: Path) -> None:
    assert_all_right(SMALL_KINDS, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", LARGE_KINDS)
def test_large_inputs(kind: str, tmp_path: Path) -> None:
    assert_all_right([kind], tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("block", range(NUM_BLOCKS))
@pytest.mark.parametrize("campaign", CAMPAIGNS)
def test_campaigns(campaign: str, block: int, tmp_path: Path) -> None:
    """The unchanged files come first and must be read; of the damaged ones some are refused."""
    assert_all_right([f"{campaign}@{block}"], tmp_path)


def test_how_many_there_are() -> None:
    assert {*SMALL_KINDS, *LARGE_KINDS} == set(KINDS)
    names = [case.name for case in cases_of(KINDS)]
    assert len(names) >= NUM_CASES
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("action", "event"),
    [
        ("pickle.loads(pickle.dumps(print))", "pickle.find_class"),
        ("open('made', 'w').close()", "open"),
        ("os.system('true')", "os.system"),
        ("open(os.devnull).close()", ""),
    ],
)
def test_what_reading_must_not_do_is_noted(action: str, event: str, tmp_path: Path) -> None:
    """In a process of its own: an audit hook stays until its end."""
    program = f"import os, pickle\nfrom tests.fuzz.reader_program import Watch\nwatch = Watch()\nwith watch: {action}\n"
    command = [sys.executable, "-c", f"{program}print(*(one.split()[0] for one in watch.found))"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == event


def assert_all_right(kinds: Sequence[str], folder: Path) -> None:
    told = read_all(kinds, folder)
    wrong = [f"{case['name']}: {reason}" for case in told for reason in wrong_with(case)]
    assert not wrong, "\n".join(wrong)
    assert [case["name"] for case in told] == [case.name for case in cases_of(kinds)]
    assert {case["outcome"] for case in told} == {READ, REFUSED}
    assert sorted(path.name for path in folder.iterdir()) == []


def read_all(kinds: Sequence[str], folder: Path) -> list[Told]:
    """The program's report of each case; the last one may lack its outcome."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.reader_program", *kinds],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    told: list[Told] = []
    for line in map(json.loads, ended.stdout.splitlines()):
        if "name" in line:
            told.append({"outcome": f"none: {ended.stderr[-3000:]}", **line})
        else:
            told[-1] |= line
    assert told, ended.stderr
    told[-1].setdefault("written", []).extend(ended.stderr.splitlines()[:5])
    return told


def wrong_with(case: Told) -> list[str]:
    outcome, message = case["outcome"], case.get("message", "")
    if outcome not in (READ, REFUSED):
        return [f"{outcome} {message[-1500:]}"]
    checks = {
        f"{outcome}, not {case['expected']}: {message}": case["expected"] in ("", outcome),
        f"{case['peak_kib']} KiB": case["peak_kib"] < MOST_MEMORY_KIB,
        f"it wrote: {case['written']}": not case["written"],
        f"no sentence: {message!r}": outcome == READ or is_a_sentence(message, case["length"]),
    }
    return [text for text, is_right in checks.items() if not is_right]


def is_a_sentence(message: str, length: int) -> bool:
    """One line of visible characters that says more than a word or two, and is no Python error in disguise."""
    return message.isprintable() and 30 < length <= MOST_CHARACTERS and "Traceback (most" not in message
