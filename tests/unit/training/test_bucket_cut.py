"""From a net and a configuration to buckets: `--bucket auto` of real nets."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from samovar.config import RunConfig
from samovar.core.errors import InputError
from samovar.core.group import Host, JobHosts
from samovar.core.large_batch import LargeBatch
from samovar.core.layout import Bucket
from samovar.core.machine import NOMINAL, CalibrationRecord
from samovar.core.plain import from_plain, to_plain
from samovar.frontends.caffe.costs import backward_multiply_adds, layer_counts
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.net import CaffeNet, build_net
from samovar.model.model import layout_of
from samovar.strategies.catalog import asked_for
from samovar.strategies.config import StrategyConfig
from samovar.training.bucket_cut import cut_buckets, cut_notices, described, exchange_model, hidden_fraction

SHAPES = {"data": (100, 3, 32, 32), "label": (100,)}
# A link on which the net takes as long as its backward pass.
SLOW_BYTES = from_plain(
    CalibrationRecord,
    to_plain(NOMINAL)
    | {"transports": {"shm": to_plain(NOMINAL)["transports"]["shm"] | {"bandwidth": [[1, 3e7]]}}, "wake_up_s": 1e-6},
)


def sharing(overlap: str | None = None, bucket: str = "auto", name: str = "sync") -> StrategyConfig:
    return asked_for(name, "auto", {"bucket_size_bytes": bucket, "overlap": overlap})


def on_machine(overlap: str | None, spare: int, record: CalibrationRecord = SLOW_BYTES) -> RunConfig:
    """Two workers of a thread, each with `spare` cores more."""
    cpus = tuple(tuple(range(first, first + 1 + spare)) for first in (0, 8))
    return RunConfig("train", Path("s"), workers=2, cpus=cpus, strategy=sharing(overlap), calibration=record)


@cache
def net(name: str, folder: Path) -> CaffeNet:
    return build_net(load_net(folder / "examples/zoo" / name / "train_val.prototxt"), "TRAIN", SHAPES, 0)


@pytest.fixture
def quick(repository_root: Path) -> CaffeNet:
    return net("cifar10_quick", repository_root)


def cut(config: RunConfig, of: CaffeNet, iter_size: int = 1) -> tuple[Bucket, ...]:
    layout = layout_of({info.name: info.parameter for info in of.parameter_infos})
    return cut_buckets(config, config.strategy, layout, of, iter_size, mapped=True)


@pytest.mark.parametrize("overlap", [None, "none", "backward", "full"])
def test_without_a_core_to_spare_the_model_stays_whole(quick: CaffeNet, overlap: str | None) -> None:
    for record in (NOMINAL, SLOW_BYTES):
        assert len(cut(on_machine(overlap, 0, record), quick)) == 1


@pytest.mark.parametrize("overlap", ["backward", "full"])
def test_with_one_it_is_divided_where_the_exchange_is_long(quick: CaffeNet, overlap: str) -> None:
    config = on_machine(overlap, 1)
    buckets = cut(config, quick)
    assert 1 < len(buckets) < 10
    assert buckets == cut(config, quick), "a pure function"
    learned = [info.name for info in reversed(quick.parameter_infos)]
    assert [entry.spec.name for bucket in buckets for entry in bucket.entries] == learned
    assert described(config, buckets) == f"{len(buckets)} buckets (auto)"
    assert cut_notices(config, config.strategy, buckets) == ()


def test_what_is_not_overlapped_is_not_divided(quick: CaffeNet) -> None:
    assert len(cut(on_machine(None, 1), quick)) == 1
    assert len(cut(replace(on_machine("backward", 1), workers=1), quick)) == 1
    exact = replace(on_machine(None, 1), exact=8)
    assert len(cut(exact, quick)) == 1
    assert described(exact, cut(exact, quick)) == ""


def test_explicit_cuts_are_as_before(quick: CaffeNet) -> None:
    layered = replace(on_machine(None, 0), strategy=sharing(bucket="layer"))
    assert len(cut(layered, quick)) == len(quick.parameter_infos)
    assert described(layered, cut(layered, quick)) == "10 buckets"
    whole = replace(on_machine(None, 0), strategy=sharing(bucket="model"))
    assert described(whole, cut(whole, quick)) == "1 bucket"


def test_an_overlap_with_nothing_to_overlap_is_told(quick: CaffeNet) -> None:
    for overlap in ("backward", "full"):
        config = on_machine(overlap, 0)
        (sentence,) = cut_notices(config, config.strategy, cut(config, quick))
        assert sentence.startswith(f"--overlap {overlap} has no effect: --bucket auto keeps the model whole")
        assert "no worker has a core to spare" in sentence
    for config in (on_machine(None, 0), replace(on_machine("full", 0), workers=1)):
        assert cut_notices(config, config.strategy, cut(config, quick)) == ()


def test_which_part_can_be_hidden() -> None:
    assert [hidden_fraction(on_machine("full", spare), sharing("full")) for spare in (0, 1, 3)] == [0, 1, 1]
    assert hidden_fraction(replace(on_machine("full", 3), oversubscribed=True), sharing("full")) == 0
    assert hidden_fraction(replace(on_machine("full", 3), cpus=()), sharing("full")) == 0
    assert hidden_fraction(on_machine("none", 3), sharing("none")) == 0


def test_whose_batch_it_is_changes_how_long_backward_takes(quick: CaffeNet) -> None:
    """A small share of the batch leaves little to hide behind: fewer buckets than with all of it."""
    per_worker = on_machine("backward", 1)
    large = replace(per_worker, large_batch=LargeBatch(200))
    assert cut(large, quick) == cut(per_worker, quick)
    tiny = replace(per_worker, large_batch=LargeBatch(2), calibration=NOMINAL)
    assert len(cut(tiny, quick)) <= len(cut(replace(per_worker, calibration=NOMINAL), quick))
    assert cut(large, quick, iter_size=2) == cut(replace(per_worker, batch_mode="global"), quick)


def test_multiply_adds_of_the_backward_pass(quick: CaffeNet) -> None:
    """ip2: 64 x 10, ip1: 1024 x 64, conv3: 64 x 32 x 5 x 5 at 8 x 8 places, ..., conv1 without its input's."""
    counts = backward_multiply_adds(quick)
    assert list(counts) == [info.name for info in reversed(quick.parameter_infos)]
    assert [counts[f"{layer}/1"] for layer in ("ip2", "ip1", "conv3", "conv2", "conv1")] == [
        2 * 100 * 64 * 10,
        2 * 100 * 1024 * 64,
        2 * 100 * 64 * 32 * 25 * 64,
        2 * 100 * 32 * 32 * 25 * 256,
        100 * 32 * 3 * 25 * 1024,
    ]
    assert all(counts[f"{layer}/0"] == 0 for layer in ("ip2", "ip1", "conv3", "conv2", "conv1"))


def test_a_layer_whose_bottom_is_the_input_counts(tmp_path: Path) -> None:
    """Each number of the input, (2, 3, 4, 4), meets a filter of 5 x 2 x 2."""
    path = tmp_path / "net.prototxt"
    path.write_text(
        """layer { name: "in" type: "Input" top: "in" input_param { shape { dim: 2 dim: 3 dim: 4 dim: 4 } } }
        layer { name: "up" type: "Deconvolution" bottom: "in" top: "up"
          convolution_param { num_output: 5 kernel_size: 2 stride: 2 } }"""
    )
    assert layer_counts(build_net(load_net(path), "TRAIN", {}, 1))["up"].multiply_adds == 2 * 3 * 4 * 4 * 5 * 2 * 2


def test_flags() -> None:
    assert sharing().automatic_buckets
    assert not sharing(name="local-sgd").automatic_buckets, "which has no buckets"
    assert not sharing(bucket="model").automatic_buckets
    assert sharing("backward").bucket_size_bytes is None
    with pytest.raises(InputError, match="--overlap full: with one bucket"):
        sharing("full", "model")
    with pytest.raises(InputError, match=r"--bucket: got '3\.5'; give 'auto', 'model', 'layer' or a number of bytes"):
        sharing(bucket="3.5")
    with pytest.raises(InputError, match="--strategy: got 'psync'"):
        sharing(name="psync")


def test_a_plan_for_one_host_is_refused_between_hosts() -> None:
    config = on_machine("backward", 1)
    hosts = JobHosts("job", (Host("a", (0,)), Host("b", (1,))), (("a", 1), ("b", 2)))
    between = replace(config, hosts=hosts, strategy=replace(config.strategy, collective="direct"))
    with pytest.raises(InputError, match="direct needs memory that all ranks map"):
        exchange_model(between, between.strategy, 4_000, mapped=False)
