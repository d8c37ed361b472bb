"""Profiles of nets: their files, and the seconds of layers on a cluster's worker."""

from dataclasses import replace
from pathlib import Path

import pytest

from samovar.core.errors import InputError
from samovar.predict.cluster import WorkerSpec
from samovar.predict.work import DATA, MODEL, volumes, work_of
from samovar.report.profile import LayerProfile, Profile, load_profile, profile_of, save_profile
from samovar.report.records import READING, LayerTime, Timed

LAYERS = (
    LayerProfile("data", "Input", activation_bytes=1_000),
    LayerProfile("conv", "Convolution", 100, 4_000, 2_000),
    LayerProfile("relu", "ReLU", activation_bytes=3_000),
    LayerProfile("fc", "InnerProduct", 1_000, 1_000, 400),
)
COUNTED = Profile("net", 10, LAYERS)
SECONDS = ((0.0, 0.0), (0.1, 0.2), (0.01, 0.02), (0.3, 0.5))
MEASURED = replace(
    COUNTED, layers=tuple(replace(one, forward_s=f, backward_s=b) for one, (f, b) in zip(LAYERS, SECONDS, strict=True))
)


def test_measured_seconds_grow_with_the_batch() -> None:
    work = work_of(MEASURED, WorkerSpec(memory=1e6), 20)
    assert [(one.name, one.num_parameters) for one in work.segments] == [("conv", 100), ("fc", 1_000)]
    assert [one.forward_s for one in work.segments] == pytest.approx([0.22, 0.6])
    assert [one.backward_s for one in work.segments] == pytest.approx([0.44, 1.0])
    assert work.update_s == pytest.approx(5 * 4_400 / 1e6)
    assert work.step_s == pytest.approx(0.22 + 0.6 + 0.44 + 1.0 + work.update_s)


def test_a_worker_with_a_speed_computes_what_was_counted() -> None:
    work = work_of(COUNTED, WorkerSpec(speed=1e4, memory=1e6), 10)
    conv, fc = work.segments
    # Neither the first layer with products nor one before it needs a gradient of its input; a ReLU moves its output.
    assert conv.forward_s == pytest.approx(2 * 4_000 / 1e4 + 2 * 3_000 / 1e6)
    assert conv.backward_s == pytest.approx(2 * 4_000 / 1e4 + 3 * 3_000 / 1e6)
    assert (fc.forward_s, fc.backward_s) == pytest.approx((2 * 1_000 / 1e4, 4 * 1_000 / 1e4))
    assert (work.before_s, work.after_s) == pytest.approx((2 * 1_000 / 1e6, 0.0))


def test_counted_layers_need_a_speed() -> None:
    with pytest.raises(InputError, match=r"counted, not timed, and the cluster's \[worker\] has no speed"):
        work_of(COUNTED, WorkerSpec(), 10)


def test_files(tmp_path: Path) -> None:
    save_profile(MEASURED, tmp_path / "net.json")
    assert load_profile(tmp_path / "net.json") == MEASURED
    (tmp_path / "net.toml").write_text(
        'format = "samovar profile 1"\nnet = "mine"\nbatch_size = 8\n'
        '[[layers]]\nname = "fc"\nnum_parameters = 10\nforward_s = 0.5\nbackward_s = 1\n'
    )
    assert load_profile(tmp_path / "net.toml").layers == (LayerProfile("fc", "", 10, 0, 0, 0.5, 1.0),)
    with pytest.raises(InputError, match=r"^/proc/net.json cannot be written: .*; give the profile a file elsewhere$"):
        save_profile(MEASURED, Path("/proc/net.json"))


LAYER = (
    '{"net": "a", "batch_size": 1, %s "layers": [{"name": "x", "num_parameters": 2, "forward_s": 0, "backward_s": 0}]}'
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "is not a profile"),
        ("[]", "not an object"),
        ('{"net": "a", "batch_size": 1, "layers": []}', "it has no layers"),
        ('{"net": "a", "batch_size": 1, "layers": [{"name": "x"}]}', "no layer has parameters"),
        ('{"net": "a", "batch_size": 1, "layers": [{"name": "x", "num_parameters": -1}]}', "'x' has a number below 0"),
        ('{"net": "a", "batch_size": 1, "layers": [{"name": "x", "weights": 1}]}', "has unknown fields: weights;"),
        ('{"weights": 1}', "Profile lacks batch_size, layers, net and has unknown fields: weights;"),
        ('{"net": "a", "batch_size": 1, "layers": [], "format": "2"}', "format is '2'"),
        (LAYER % '"update_s": -1,', "update_s is below 0"),
        (LAYER % '"update_s": NaN,', "update_s is below 0, or without end"),
        (LAYER % "", "its layers take no time"),
        ((LAYER % "").replace('"backward_s": 0', '"backward_s": NaN'), "'x' has a number below 0, or one without end"),
        ((LAYER % "").replace('"backward_s": 0', '"fresh_s": NaN'), "'x' has a number below 0, or one without end"),
        ((LAYER % "").replace('"batch_size": 1', f'"batch_size": 1{"0" * 400}'), "that fits into 64 bits"),
    ],
)
def test_what_is_no_profile(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        load_profile(path)


def test_the_record_of_samovar_time() -> None:
    layers = (
        LayerTime(name="train", type=READING, forward_ms=9.0, backward_ms=0.0),
        LayerTime(name="fc", type="InnerProduct", forward_ms=2.0, backward_ms=3.0, num_parameters=7, multiply_adds=5),
    )
    timed = Timed(
        net_name="net",
        phase="TRAIN",
        batch_size=4,
        threads=1,
        iterations=3,
        layers=layers,
        forward_ms=2.0,
        backward_ms=3.0,
        iteration_ms=(),
        initial_loss=None,
    )
    profile = profile_of(timed)
    assert profile.layers == (LayerProfile("fc", "InnerProduct", 7, 5, 0, 0.002, 0.003),)
    assert not profile_of(replace(timed, iterations=0)).is_measured


def test_less_is_sent_by_data_or_by_model_parallelism() -> None:
    conv, fc = volumes(COUNTED, 20)
    assert (conv.weight_bytes, conv.data_bytes, conv.advice) == (400, 4_000, DATA)
    assert (fc.weight_bytes, fc.data_bytes, fc.advice) == (4_000, 800, MODEL)


def test_a_speed_without_products_is_not_called_missing() -> None:
    with pytest.raises(InputError, match="lacks its seconds, and none has multiply_adds"):
        work_of(Profile("net", 1, (LayerProfile("fc", "", 10, 0, 0, 0.5),)), WorkerSpec(speed=1e12), 1)
