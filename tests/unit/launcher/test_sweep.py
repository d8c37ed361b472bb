"""`--workers auto`: which settings are tried, which is kept, and what is refused."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.config import RunConfig
from samovar.core.errors import InputError
from samovar.launch.numa import place
from samovar.launcher import placing
from samovar.launcher.placing import placed
from samovar.launcher.sweep import fastest, sweep_lines, sweep_settings, with_fastest_workers
from samovar.launcher.train import count_of
from samovar.report.console import Console
from samovar.report.result import SweptSetting
from samovar.strategies.config import StrategyConfig


def swept(*rates: float | None) -> list[SweptSetting]:
    settings = sweep_settings([16])
    return [
        SweptSetting(workers=workers, threads_per_worker=threads, samples_per_second=rate)
        for (workers, threads), rate in zip(settings, rates, strict=False)
    ]


def test_the_plan() -> None:
    assert sweep_settings([1]) == ((1, 1),)
    assert sweep_settings([2]) == ((1, 2), (2, 1))
    assert sweep_settings([16]) == ((1, 16), (2, 8), (4, 4), (8, 2), (16, 1))
    assert sweep_settings([6]) == ((1, 6), (2, 3), (3, 2), (6, 1))
    assert sweep_settings([16], most_workers=4) == ((1, 16), (2, 8), (4, 4))
    assert sweep_settings([16], threads_per_worker=4) == ((1, 4), (2, 4), (4, 4))
    assert sweep_settings([7], threads_per_worker=3) == ((1, 3), (2, 3))
    assert sweep_settings([2], threads_per_worker=4) == ((1, 4),)


@given(st.integers(1, 256), st.none() | st.integers(1, 64), st.none() | st.integers(1, 64))
def test_no_setting_has_more_threads_than_cores(cores: int, threads: int | None, most: int | None) -> None:
    settings = sweep_settings([cores], threads, most)
    assert settings[0][0] == 1
    assert list(settings) == sorted(set(settings))
    for workers, each in settings:
        assert workers * each <= cores or (workers, each) == (1, threads)
        assert most is None or workers <= most
        assert each == threads if threads is not None else workers * each == cores


def test_workers_lie_inside_nodes_or_have_whole_ones() -> None:
    assert sweep_settings([8, 8]) == ((1, 16), (2, 8), (4, 4), (8, 2), (16, 1))
    assert sweep_settings([6, 6]) == ((1, 12), (2, 6), (4, 3), (6, 2), (12, 1))  # not 3 x 4
    assert sweep_settings([4] * 4) == ((1, 16), (2, 8), (4, 4), (8, 2), (16, 1))
    assert sweep_settings([6, 10]) == ((1, 16), (2, 6), (4, 3), (8, 2), (16, 1))
    assert sweep_settings([6, 7]) == ((1, 13), (2, 6), (4, 3), (6, 2), (13, 1))
    assert sweep_settings([1, 3], most_workers=2) == ((1, 4), (2, 1))
    assert sweep_settings([6, 10], threads_per_worker=4) == ((1, 4), (3, 4))
    assert sweep_settings([8, 8], threads_per_worker=12) == ((1, 12),)


@given(st.lists(st.integers(1, 64), min_size=1, max_size=8))
def test_placed_workers_of_a_setting_lie_as_it_says(sizes: list[int]) -> None:
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    nodes = [tuple(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]
    settings = sweep_settings(sizes)
    assert settings[0] == (1, sum(sizes))
    assert len({threads for _, threads in settings}) == len(settings)
    for workers, threads in settings:
        placement = place(workers, threads, nodes=nodes)
        assert not placement.oversubscribed
        cpus = [cpu for own in placement.cpus for cpu in own]
        assert len(cpus) == len(set(cpus)) == workers * threads
        for own in placement.cpus:
            met = [len(set(own) & set(node)) for node in nodes]
            assert workers == 1 or max(met) == threads or all(count in (0, sizes[0]) for count in met)


def test_the_fastest_is_kept_and_of_equals_the_fewest_workers() -> None:
    assert fastest(swept(10.0, 30.0, 20.0)).workers == 2
    assert fastest(swept(30.0, 30.0)).workers == 1
    assert fastest(swept(10.0, None)).workers == 1
    assert sweep_lines(swept(1234.5, None)) == [
        "  1 worker x 16 threads      1,234.5 samples/s",
        "  2 workers x 8 threads   refused: the batch or memory is too small for it",
        "--workers auto: 1 worker x 16 threads",
    ]
    assert sweep_lines([]) == []


def settle(config: RunConfig) -> RunConfig:
    return with_fastest_workers(config, None, None, Console(sys.stdout, sys.stderr))


@pytest.mark.parametrize(
    ("strategy", "batch_mode", "message"),
    [
        (
            "sync",
            "per-worker",
            r"--workers auto: with --batch-mode per-worker the batch of a step grows with the workers \(1, 2, 4\).* "
            "share one batch: --batch-mode global, --exact K or --large-batch N",
        ),
        ("local-sgd", "global", "--workers auto: with --strategy local-sgd the number of workers changes what"),
    ],
)
def test_settings_that_would_train_otherwise_are_refused(
    monkeypatch: pytest.MonkeyPatch, repository_root: Path, strategy: str, batch_mode: str, message: str
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1, 2, 3})
    solver = repository_root / "examples/lenet/digits_solver.prototxt"
    config = RunConfig("train", solver, strategy=StrategyConfig(strategy), batch_mode=batch_mode)
    with pytest.raises(InputError, match=message):
        settle(config)


def test_on_one_core_there_is_nothing_to_try(monkeypatch: pytest.MonkeyPatch, repository_root: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    config = settle(RunConfig("train", repository_root / "examples/lenet/digits_solver.prototxt"))
    assert (config.workers, config.threads_per_worker, config.cpus) == (1, 1, ((3,),))


def test_cores_to_spare_go_to_workers_that_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(5)))
    monkeypatch.setattr(placing, "taken_cpus", lambda _cpus: ())  # what else computes here now
    plain = RunConfig("train", Path("s"))
    overlapping = RunConfig("train", Path("s"), strategy=StrategyConfig(overlap="full", bucket_size_bytes=1))
    assert placed(plain, 2, 1).cpus == ((0,), (1,))
    assert placed(overlapping, 2, 1).cpus == ((0, 1), (2, 3))
    assert placed(overlapping, 2, None).cpus == ((0, 1), (2, 3))
    assert placed(overlapping, 5, 1).cpus == ((0,), (1,), (2,), (3,), (4,))
    assert placed(overlapping, 6, 1).oversubscribed


def test_numbers_and_auto() -> None:
    assert [count_of("--workers", text) for text in (None, "auto", "3", "0", 5)] == [None, None, 3, 0, 5]
    text: Any
    for text in ("", "-1", "two", "1.5", "²", "Auto", True, 1.0, 5000 * "9"):
        with pytest.raises(InputError, match="--workers: got"):
            count_of("--workers", text)
