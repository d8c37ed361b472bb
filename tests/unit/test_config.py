"""The configuration of a run: what it refuses, and its way through JSON."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samovar.config import RunConfig, parse_weights
from samovar.core.errors import InputError
from samovar.core.large_batch import LargeBatch
from samovar.core.trace import TraceWindow
from samovar.report.result import SweptSetting
from samovar.strategies.config import StrategyConfig, parse_bucket

MINIMAL: dict[str, Any] = {"job": "train", "model": Path("solver.prototxt")}
FULL = RunConfig(
    job="train",
    model=Path("nets/solver.prototxt"),
    snapshot=Path("runs/latest"),
    workers=4,
    threads_per_worker=2,
    cpus=((0, 1), (2, 3), (4, 5), (6, 7)),
    oversubscribed=True,
    strategy=StrategyConfig("sync", "tree", 4096),
    batch_mode="global",
    seed=7,
    shuffle=True,
    iterations=0,
    timeout_s=1.5,
    out=Path("runs/x y"),
    level=2,
    stages=("a", "b"),
    large_batch=LargeBatch(512, "linear", 20),
    trace=TraceWindow(20, 30),
    sweep=(SweptSetting(workers=4, threads_per_worker=2, samples_per_second=1.5),),
    device="cpu-staged",
)
EASGD = StrategyConfig("async-easgd")
AT_BOX = RunConfig(
    "train",
    Path("s"),
    strategy=EASGD,
    box="host0:4711",
    join=True,
    key_file=Path("box.key"),
    buffer="lenet",
    cpus=((),),
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workers": 0}, "--workers: got 0; give at least 1"),
        ({"threads_per_worker": 0}, "--threads-per-worker: got 0; give at least 1"),
        ({"iterations": -1}, "--iterations: got -1; give at least 0"),
        ({"job": "test", "iterations": 0}, "--iterations: got 0; give at least 1"),
        ({"seed": -1}, "--seed: got -1; give at least 0"),
        ({"timeout_s": 0.0}, "--timeout: got 0.0 s"),
        ({"timeout_s": 86_400.0}, "--timeout: got 86400.0 s"),
        ({"timeout_s": float("nan")}, "--timeout: got nan s"),
        ({"phase": "train"}, "--phase: got 'train'; choose one of: TRAIN, TEST"),
        ({"batch_mode": "local"}, "--batch-mode: got 'local'; choose one of: per-worker, global"),
        ({"recipe": "best"}, "--recipe: got 'best'; choose one of: auto, none"),
        ({"recipe": "auto", "batch_mode": "per-worker"}, "--recipe auto: workers share the batch; leave --batch-mode"),
        ({"recipe": "auto", "strategy": EASGD, "box": "b"}, "--recipe auto: workers at a box come and go"),
        ({"recipe": "none", "large_batch": LargeBatch(512)}, "--recipe none: --large-batch asks for a recipe"),
        ({"weights": (Path("a"),), "snapshot": Path("b")}, "--weights and --snapshot exclude each other"),
        ({"strategy": replace(EASGD, collective="ring")}, "--collective: workers with .*-easgd make no sums"),
        ({"strategy": EASGD, "join": True}, "--join: needs a box"),
        ({"strategy": EASGD, "key_file": Path("key")}, "--key-file: needs a box"),
        ({"strategy": EASGD, "buffer": "lenet"}, "--buffer: needs a box"),
        ({"box": "default"}, "--box default: workers with sync share no center"),
        ({"box": "default", "strategy": StrategyConfig("sync-easgd")}, "workers with sync-easgd share no center"),
        (
            {"box": "default", "strategy": StrategyConfig("round-robin-easgd")},
            "workers with round-robin-easgd take turns",
        ),
        ({"box": "default", "strategy": EASGD, "record": True}, "--record: other runs may train at a box"),
        ({"box": "default", "strategy": EASGD, "replay": Path("r")}, "--replay: other runs may train"),
        ({"box": "b", "strategy": EASGD, "join": True, "weights": (Path("w"),)}, "--join: .*leave --weights out"),
        ({"box": "b", "strategy": EASGD, "join": True, "snapshot": Path("s")}, "--join: .*leave --snapshot out"),
    ],
)
def test_refusals_name_the_flag_what_was_given_and_what_is_allowed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RunConfig(**(MINIMAL | changes))


@pytest.mark.parametrize(
    ("given", "is_used"),
    [
        ({"strategy": StrategyConfig("sync")}, False),
        ({"strategy": StrategyConfig("sync"), "recipe": "auto"}, True),
        ({}, True),
        ({"recipe": "none"}, False),
        ({"batch_mode": "per-worker"}, False),
        ({"batch_mode": "global"}, False),
        ({"batch_mode": "global", "recipe": "auto"}, True),
        ({"large_batch": LargeBatch(512)}, False),
        ({"box": "default"}, False),
        ({"by_caffe": True}, False),
    ],
)
def test_a_recipe_is_used_where_nothing_else_is_said_of_the_batch(given: dict[str, Any], is_used: bool) -> None:
    config = RunConfig(**(MINIMAL | {"strategy": EASGD} | given))
    assert (config.used_recipe is not None) == is_used
    assert config.shares_batch == (is_used or config.batch_mode == "global")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "psync"}, "--strategy: got 'psync'; did you mean 'sync'\\? Else choose one of: sync"),
        ({"collective": "star"}, "--collective: got 'star'; choose one of: direct, ring, tree"),
        ({"bucket_size_bytes": 0}, "--bucket: got 0 bytes"),
    ],
)
def test_strategy_settings_are_refused_likewise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        StrategyConfig(**settings)


def test_buckets_as_flags_spell_them() -> None:
    assert [parse_bucket(text) for text in ("model", "layer", "1", "4194304")] == [None, 1, 1, 4_194_304]
    for text in ("", "0", "-1", "1.5", "4M", "Model", "²"):
        with pytest.raises(InputError, match="--bucket: got"):
            parse_bucket(text)


@pytest.mark.parametrize(
    "config", [RunConfig(**MINIMAL), FULL, AT_BOX, RunConfig("test", Path("net"), weights=(Path("w"), Path("x")))]
)
def test_a_configuration_comes_back_from_its_file(config: RunConfig, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_json()), encoding="utf-8")
    assert RunConfig.load(path) == config


def without(name: str) -> dict[str, Any]:
    values = FULL.to_json()
    del values[name]
    return values


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "null",
        b"\xff\xfe",
        without("cpus"),
        without("job"),
        without("strategy"),
        FULL.to_json() | {"learning_rate": 1},
        FULL.to_json() | {"workers": "4"},
        FULL.to_json() | {"model": 3},
        FULL.to_json() | {"cpus": 3},
        FULL.to_json() | {"strategy": {"name": "sync", "speed": 1}},
    ],
)
def test_a_file_that_holds_something_else_is_an_input_error(content: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    text = content if isinstance(content, str) else json.dumps(content) if isinstance(content, dict) else ""
    path.write_bytes(content if isinstance(content, bytes) else text.encode())
    with pytest.raises(InputError, match=r"config\.json: not a configuration of this version"):
        RunConfig.load(path)


def test_a_file_with_a_refused_value_says_which_flag_and_a_missing_file_says_so(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(FULL.to_json() | {"workers": 0}))
    with pytest.raises(InputError, match="--workers: got 0"):
        RunConfig.load(path)
    with pytest.raises(InputError, match=r"nowhere\.json: .*No such file"):
        RunConfig.load(tmp_path / "nowhere.json")


def test_several_files_of_weights() -> None:
    assert parse_weights("a.caffemodel, b.caffemodel") == (Path("a.caffemodel"), Path("b.caffemodel"))
    assert parse_weights(None) == ()
    with pytest.raises(InputError, match="--weights 'a,': a name is empty"):
        parse_weights("a,")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0,), "--large-batch: got 0"),
        ((8, "cubic"), "--rate-scaling: got 'cubic'; choose one of: firecaffe, linear, sqrt, none"),
        ((8, "sqrt", -1), "--warm-up-steps: got -1"),
    ],
)
def test_refusals_of_the_large_batch_recipe(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LargeBatch(*values)
