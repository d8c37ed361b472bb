"""Flags in the form of Caffe's command line."""

from pathlib import Path

import pytest

from samovar.cli.caffe_command import CaffeFlags, parse_caffe_flags
from samovar.core.errors import InputError
from samovar.launch.processes import SignalEffect


@pytest.mark.parametrize("words", ["-solver a.x", "--solver a.x", "-solver=a.x", "--solver=a.x"])
def test_one_dash_or_two_with_a_space_or_an_equals_sign(words: str) -> None:
    expected = CaffeFlags("train", solver=Path("a.x"))
    assert parse_caffe_flags(["train", *words.split()]) == expected
    assert parse_caffe_flags([*words.split(), "train"]) == expected


def test_every_flag() -> None:
    words = (
        "train -solver s -model m -weights a,b -snapshot t -gpu 0,1 -iterations 7 -phase TEST -level -2 -stage x,y "
        "-sigint_effect none -sighup_effect stop -workers 2 -threads_per_worker 3 -strategy local-sgd"
    )
    assert parse_caffe_flags(words.split()) == CaffeFlags(
        "train",
        Path("s"),
        Path("m"),
        (Path("a"), Path("b")),
        Path("t"),
        "0,1",
        7,
        "TEST",
        -2,
        ("x", "y"),
        SignalEffect.NONE,
        SignalEffect.STOP,
        2,
        3,
        "local-sgd",
    )


def test_the_last_one_wins_and_glogs_flags_are_taken() -> None:
    words = "test -logtostderr=1 -iterations 3 -log_dir logs --minloglevel=0 -noalsologtostderr -iterations=4 -v 1"
    assert parse_caffe_flags(words.split()) == CaffeFlags("test", iterations=4)


def test_an_empty_value_means_that_a_flag_is_not_given() -> None:
    words = ["train", "-solver=", "-model", "", "-weights", "a", "-weights", "", "-snapshot=", "-gpu", "", "-phase="]
    assert parse_caffe_flags([*words, "-stage="]) == CaffeFlags("train")


def test_values_may_hold_an_equals_sign() -> None:
    assert parse_caffe_flags(["time", "-model=a=b"]).model == Path("a=b")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "no command; give one of: train, test, time, device_query"),
        ("tain", "got 'tain'"),
        ("train test", "got 'train test'"),
        ("train -solvr x", "-solvr: samovar caffe has no such flag; did you mean '-solver'?"),
        ("train -zzz x", "allowed are -"),
        ("train -solver", "-solver needs a value"),
        ("test -iterations many", "-iterations many: is not a whole number"),
        ("test -iterations 0", "-iterations 0: give at least 1"),
        ("time -phase BOTH", "-phase BOTH: give one of: TRAIN, TEST"),
        ("train -sigint_effect quit", "-sigint_effect quit: give one of: stop, snapshot, none"),
        ("train -weights a,,b", "a name is empty"),
    ],
)
def test_refused(words: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parse_caffe_flags(words.split())
    assert message in str(error.value)
