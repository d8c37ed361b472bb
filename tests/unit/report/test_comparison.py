"""Runs next to each other and next to a prediction, as their page shows them."""

import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samovar.core.errors import InputError
from samovar.report.comparison import read_foreseen
from samovar.report.console import LogFile
from samovar.report.result import Foreseen, read_result, write_result
from samovar.report.run_folder import RunFolder
from tests.unit.report.run_folders import changed_result, page_of, prediction, run_folder, step_lines, verdict


def test_runs_of_different_nets_are_not_set_against_each_other(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path / str(workers), workers=workers) for workers in (1, 2)]
    other = RunFolder(folders[0])
    write_result(other.result, replace(read_result(other.result), net_parameters=5))
    assert verdict(page_of(*folders)).startswith("2 workers with sync is the fastest of 2 runs: 10,944 samples/s, and")
    with pytest.raises(InputError, match="the prediction is of LeNet, and a run trained another net"):
        page_of(folders[1], foreseen=read_foreseen(prediction(tmp_path / "p.json", parameters=6)))


def test_a_run_is_not_compared_with_a_prediction_of_another_batch(tmp_path: Path) -> None:
    foreseen = read_foreseen(prediction(tmp_path / "p.json", batch_size=256))
    folder, other = run_folder(tmp_path / "run"), run_folder(tmp_path / "other", "async-easgd")
    said = "the prediction is of batches of 256 a worker, and 2 workers with sync had 128 samples a step together"
    with pytest.raises(InputError, match=f"{said}; predict with --batch"):
        page_of(folder, foreseen=foreseen)
    shared = replace(foreseen, shares_batch=True)
    text = page_of(changed_result(folder, effective_batch=256), other, foreseen=shared)
    said = "The prediction is of batches of 256 for all workers, so it says nothing about 2 workers with async-easgd."
    assert said in text
    assert "2 workers with sync, predicted" in text
    assert "2 workers with async-easgd, predicted" not in text
    assert "the prediction is" not in page_of(changed_result(other, effective_batch=256), foreseen=shared)


def test_a_run_that_trains_is_compared_with_a_prediction_of_its_batch(tmp_path: Path) -> None:
    files = RunFolder(run_folder(tmp_path / "run"))
    files.result.unlink()
    assert "2 workers with sync, predicted" in page_of(files.path, foreseen=read_foreseen(prediction(tmp_path / "p")))
    with pytest.raises(InputError, match="had 128 samples a step together"):
        page_of(files.path, foreseen=read_foreseen(prediction(tmp_path / "p", batch_size=32)))


def test_the_settings_of_a_prediction_are_shown(tmp_path: Path) -> None:
    foreseen = read_foreseen(prediction(tmp_path / "p.json"))
    rows = tuple(replace(row, settings="an exchange every 8 steps") for row in foreseen.rows)
    text = page_of(run_folder(tmp_path / "run"), foreseen=replace(foreseen, rows=rows))
    assert "2 workers with sync, predicted (an exchange every 8 steps)" in text
    assert "<td>12,160</td><td>an exchange every 8 steps</td><td>-10%</td>" in text


def test_a_run_that_knows_its_own_prediction(tmp_path: Path) -> None:
    files = RunFolder(run_folder(tmp_path / "run"))
    own = Foreseen(
        cluster="here", net="LeNet", strategy="sync", workers=2, predicted_s=0.012, measured_s=0.01, profile="timed"
    )
    write_result(files.result, replace(read_result(files.result), foreseen=own))
    assert verdict(page_of(files.path)).endswith("at 10,944 samples/s, 20% more than predicted.")


def test_one_worker_is_a_run_like_each_worker(tmp_path: Path) -> None:
    alone = changed_result(run_folder(tmp_path / "alone", workers=1), samples_per_second=5760.0)
    fast = changed_result(run_folder(tmp_path / "fast", workers=1), samples_per_second=5e4, threads_per_worker=8)
    two = run_folder(tmp_path / "two")
    assert "is the fastest of 2 runs: 10,944 samples/s, 1.90 times one worker" in page_of(alone, two)
    assert "1.90</td>" in page_of(alone, fast, two)
    for figures in ({"threads_per_worker": 8}, {"precision": "bf16"}, {"effective_batch": 1024}):
        said = page_of(changed_result(alone, **figures), two)
        assert "No speed-up for 2 workers with sync: it needs a run of one worker that has ended" in said
        assert "1.90" not in said
        changed_result(alone, threads_per_worker=1, precision="fp32", effective_batch=64)
    RunFolder(two).config.write_text('{"device": "cuda:1", "model": "net.prototxt"}')
    os.utime(RunFolder(two).result)
    assert "with equal batch, threads, precision and device." in page_of(alone, two)
    RunFolder(alone).result.unlink()
    assert "1.90" not in page_of(alone, two), "it has not ended"


def test_a_run_of_another_net_that_has_not_ended_is_set_against_none(tmp_path: Path) -> None:
    alone, two = run_folder(tmp_path / "1", workers=1), RunFolder(run_folder(tmp_path / "2"))
    two.result.unlink()
    config = {**json.loads(two.config.read_text()), "threads_per_worker": 1}
    two.config.write_text(json.dumps(config))
    assert "2.22</td>" in page_of(alone, two.path)
    two.config.write_text(json.dumps({**config, "model": "other.prototxt"}))
    text = page_of(alone, two.path)
    assert "2.22</td>" not in text
    assert "The runs train different nets, so none is set against one worker." in text


def test_a_run_that_failed_is_not_the_fastest(tmp_path: Path) -> None:
    sound, failed = run_folder(tmp_path / "sound"), RunFolder(run_folder(tmp_path / "failed", "local-sgd"))
    failed.result.unlink()
    failed.log.write_text("2026-11-24T20:00:00.000+00:00 samovar: error: weights are not finite\n")
    text = page_of(sound, failed.path)
    assert verdict(text).startswith("2 workers with sync is the fastest of the runs that did not fail: 10,944")
    assert "<td>failed: weights are not finite</td>" in text
    changed_result(sound, stopped_by="SIGINT", steps=150)
    text = page_of(sound, failed.path)
    assert verdict(text).startswith("2 workers with sync (stopped by SIGINT at step 150) is the fastest of the runs")
    failed.log.unlink()
    assert "<td>trains, or has ended</td>" in page_of(sound, failed.path)
    LogFile(failed.log).close()
    text = page_of(sound, failed.path)
    assert "<td>ended by force</td>" in text
    assert verdict(text).startswith("2 workers with sync (stopped by")


def test_slow_runs_have_a_rate(tmp_path: Path) -> None:
    one = changed_result(run_folder(tmp_path / "1", workers=1), samples_per_second=0.27)
    two = changed_result(run_folder(tmp_path / "2"), samples_per_second=0.43)
    assert "in 3 s, at 0.43 samples/s" in verdict(page_of(two))
    assert "<dt>samples/s</dt><dd>0.43</dd>" in page_of(two)
    text = page_of(one, two)
    assert "runs: 0.43 samples/s, 1.59 times one worker" in verdict(text)
    assert "<td>0.27</td><td>1.00</td>" in text


def test_loops_that_count_no_samples_have_no_rate(tmp_path: Path) -> None:
    for name in ("slow", "fast"):
        (tmp_path / name).mkdir()
        step_lines(tmp_path / name, 1, 50, batch=0)
    text = page_of(tmp_path / "slow", tmp_path / "fast")
    assert verdict(text).startswith("2 runs without a rate, so none is the fastest")
    assert "samples/s" not in text
    text = page_of(tmp_path / "slow")
    assert verdict(text).endswith("are at step 50, with loss 0.0460.")
    assert "samples/s" not in text


def test_settings_that_differ_are_all_shown(tmp_path: Path) -> None:
    differing = {
        "model": ("a.prototxt", "b.prototxt"),
        "weights": (["a.caffemodel", "b.h5"], []),
        "exact": (8, None),
        "shuffle": (True, False),
        "device": ("cpu", "cuda"),
        "large_batch": ({"batch_size": 1024, "rate_scaling": "linear", "warm_up_steps": None}, None),
        "hosts": ({"job": "x", "hosts": [{"name": "a", "ranks": [0]}, {"name": "b", "ranks": [1]}]}, None),
        "strategy": ({"name": "sync", "own": {"mine": True}}, {"name": "sync", "mine": False}),
        "hold_data": (True, True),
    }
    folders = []
    for which in (0, 1):
        files = RunFolder(run_folder(tmp_path / str(which)))
        files.config.write_text(json.dumps({name: values[which] for name, values in differing.items()}))
        os.utime(files.result)
        folders.append(files.path)
    own, shared = re.findall(r'aria-label="Settings.*?</table>', page_of(*folders))
    shown = dict(re.findall(r'<th scope="row">(.*?)</th>(.*?)</tr>', own))
    assert {name: re.findall("<td>(.*?)</td>", cells) for name, cells in shown.items() if name != "folder"} == {
        "model": ["a.prototxt", "b.prototxt"],
        "weights": ["a.caffemodel, b.h5", "–"],
        "exact": ["8", "–"],
        "shuffle": ["yes", "no"],
        "device": ["cpu", "cuda"],
        "large batch": ["batch size 1,024, rate scaling linear", "–"],
        "hosts": ["a, b", "–"],
        "mine": ["yes", "no"],
    }
    assert '<th scope="row">hold data</th><td>yes</td>' in shared


@pytest.mark.parametrize(
    "changed",
    [{"parameters": math.inf}, {"batch_size": None}, {"speed_up": 0}, {"samples_per_s": "NaN"}, {"workers": 10**400}],
)
def test_a_prediction_that_nobody_can_compute_with(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = prediction(tmp_path / "p.json")
    answer = json.loads(path.read_text())
    of_row = changed.keys() <= answer["predictions"][0].keys()
    (answer["predictions"][0] if of_row else answer).update(changed)
    path.write_text(json.dumps(answer))
    with pytest.raises(InputError, match=r"is not a prediction: .*; give a file of samovar predict --json"):
        read_foreseen(path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"net": "n", "cluster": "c", "predictions": []}'])
def test_a_file_that_is_not_a_prediction(tmp_path: Path, content: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"is not a prediction: .*; give a file of samovar predict --json"):
        read_foreseen(path)
