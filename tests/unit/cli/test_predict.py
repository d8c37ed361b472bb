"""`samovar predict` in this process: its answers, and its refusals."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from samovar.cli import commands, predict
from samovar.files.net_profile import net_profile
from samovar.report.comparison import read_foreseen
from samovar.report.profile import LayerProfile, Profile, load_profile, save_profile


@pytest.fixture
def net(tmp_path: Path) -> str:
    layers = (
        LayerProfile("conv", "Convolution", 1_000, 0, 4_000_000, 0.01, 0.02),
        LayerProfile("fc", "InnerProduct", 5_000_000, 0, 40_000, 0.01, 0.02),
    )
    save_profile(Profile("two_layers", 32, layers), tmp_path / "net.json")
    return str(tmp_path / "net.json")


def asked(*words: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["samovar", "predict", *words])
        return commands.run(sys.argv[1:], lambda: None)


def test_tables(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--workers", "1..8", "--periods", "--collectives", "--layers", "--epochs", "2", "--epoch-samples", "60000")
    assert asked("--profile", net, "--cluster", "ethernet-10g", *words) == 0
    shown = capsys.readouterr().out
    for said in (
        "two_layers · 5,001,000 parameters, 20 MB · batch a worker: 32",
        "speed-up against one worker (simulated)",
        "a step with 8 workers (simulated)",
        "sync-easgd",
        "an all-reduce of 20 MB among 8 workers (simulated)",
        "shortest period with 90 % of ideal, 8 workers (simulated)",
        "model parallel",
    ):
        assert said in shown, shown


def test_json(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--strategy", "sync,local-sgd", "--sync-period", "4", "--workers", "2,3", "--json")
    assert asked("--profile", net, "--cluster", "aws-p3-16xlarge", *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["simulated"] is True
    assert [(one["strategy"], one["workers"]) for one in found["predictions"]] == [
        ("sync", 2),
        ("local-sgd", 2),
        ("sync", 3),
        ("local-sgd", 3),
    ]
    assert "every 4 steps" in found["predictions"][1]["settings"]
    assert found["predictions"][0]["price_per_million"] > 0


def test_a_bucket_of_the_whole_model_and_columns_that_do_not_fit(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--cluster", "ethernet-10g", "--strategy", "sync", "--workers", ",".join(map(str, range(2, 16))))
    assert asked("--profile", net, *words, "--bucket", "model") == 0
    shown = capsys.readouterr().out
    assert "overlap none" in shown
    assert "buckets" not in shown
    assert "--json also has 2, 3" in shown


NET = """name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 8 dim: 5 } } }
layer { name: "label" type: "Input" top: "label" input_param { shape { dim: 8 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 3 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" }
"""


def test_a_step_of_several_passes_is_one_of_the_whole_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """iter_size adds up gradients before workers exchange them."""
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "link.toml").write_text(
        'title = "a"\n[worker]\nspeed = "1 Gflop/s"\n[network]\nbandwidth = "1 Gbit/s"\n'
    )
    found = []
    for iter_size, more in ((4, ()), (1, ("--batch", "32"))):
        solver = f'net: "{tmp_path}/net.prototxt" base_lr: 1 lr_policy: "fixed" max_iter: {80 // iter_size}\n'
        (tmp_path / "solver.prototxt").write_text(f"{solver}iter_size: {iter_size}\n")
        words = ("--workers", "1,2", "--strategy", "sync,local-sgd", "--json", *more)
        assert asked("--solver", f"{tmp_path}/solver.prototxt", "--cluster", f"{tmp_path}/link.toml", *words) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["batch_size"] == 32
    assert found[0]["predictions"] == found[1]["predictions"]


@pytest.mark.parametrize(("kind", "period"), [("SGD", 16), ("Adam", 8)])
def test_the_recipe_is_that_of_the_solver(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, period: int
) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net: "{tmp_path}/net.prototxt" type: "{kind}" base_lr: 1 lr_policy: "fixed" max_iter: 80\n')
    words = ("--cluster", "knl", "--workers", "4", "--strategy", "diloco", "--recipe", "auto", "--json")
    assert asked("--solver", str(solver), *words) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    assert found["settings"].startswith(f"an exchange every {period} steps")


def test_pictures(net: str, tmp_path: Path) -> None:
    """In a process of its own: matplotlib keeps its fonts open. It would take a name with two prices for a formula."""
    Path(net).write_text(Path(net).read_text().replace("two_layers", "layers for $1{ or $2"))
    folder = tmp_path / "drawn"
    command = [sys.executable, "-P", "-m", "samovar.cli.entry", "predict", "--profile", net, "--learn"]
    command += ["--cluster", "aws-p3-16xlarge", "--workers", "1,2", "--strategy", "sync,async-sgd", "--recipe", "auto"]
    command += ["--pictures", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=True)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        f"{name}.{kind}" for name in ("learning", "price", "speed-up", "staleness", "step") for kind in ("png", "svg")
    )
    assert all(path.stat().st_size > 5_000 for path in folder.iterdir())
    assert done.stdout.count("drawn: ") == 10
    assert "all workers share a batch of 32" in done.stdout
    assert "a small net learns digits, 2 workers (real gradients, simulated time)" in done.stdout


def test_a_report_takes_a_prediction_of_a_net_that_does_not_learn_all_its_parameters(
    net: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run counts frozen layers, and BatchNorm's sums."""
    profile = load_profile(Path(net))
    frozen = LayerProfile("frozen", "", 0, 0, 0, 0.01, 0.0, num_unlearned=7)
    save_profile(replace(profile, layers=(frozen, *profile.layers)), Path(net))
    assert asked("--profile", net, "--workers", "2", "--strategy", "sync", "--json") == 0
    (tmp_path / "answer.json").write_text(capsys.readouterr().out)
    assert read_foreseen(tmp_path / "answer.json").num_parameters == 5_001_007


def test_too_few_digits_are_refused_before_anything_is_simulated(
    net: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(predict, "predicted")
    assert asked("--profile", net, "--workers", "17", "--learn") == 2
    assert "add a smaller number to --workers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give one of --solver FILE, --net FILE and --profile FILE"),
        (("--workers", "8..1"), "--workers: got '8..1'; give 1..128"),
        (("--workers", "0"), "--workers: got '0'"),
        (("--workers", "99999"), "of 1 to 4,096"),
        (("--strategy", "best"), "--strategy: got 'best'"),
        (("--cluster", "titanic"), "no such preset"),
        (("--batch-mode", "all"), "--batch-mode: got 'all'"),
        (("--epochs", "2"), "--epochs and --epoch-samples go together"),
        (("--epochs", "inf", "--epoch-samples", "9"), "--epochs inf: give a number"),
        (("--collective", "direct"), "collective: direct needs memory that all ranks map"),
        (("--transport", "mpi"), "No such option: --transport"),  # the cluster says how bytes travel
        (("--factors", "auto"), "No such option: --factors"),  # gradients are simulated whole
        (("--epochs", "0", "--epoch-samples", "9"), "--epochs 0: give a number above 0"),
        (("--threads-per-worker", "2"), "are for a net that is timed here"),
        (("--threads-per-worker", "0"), "greater than or equal to 1"),
        (("--strategy", "sync", "--sync-period", "4"), "--sync-period: none of sync has this setting"),
        (("--batch", "4", "--batch-mode", "global", "--workers", "8"), "8 workers have less than a sample each"),
    ],
)
def test_refusals(net: str, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = ("--profile", net) if words else ()
    assert asked(*source, *words) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_outputs_of_an_unknown_size_give_no_advice(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    profile = load_profile(Path(net))
    save_profile(replace(profile, layers=(*profile.layers, LayerProfile("last", "", 9, 0, 0, 0.01, 0.02))), Path(net))
    assert asked("--profile", net, "--layers") == 2
    assert "--layers: two_layers: layer 'last' lacks its activation_bytes" in capsys.readouterr().err


def test_a_cluster_speed_that_does_not_count_is_told(net: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`replica.profile` counts no products."""
    assert asked("--profile", net, "--cluster", "aws-p3-16xlarge", "--workers", "1", "--strategy", "sync") == 0
    assert "computation: the profile's seconds, not the cluster's speed" in capsys.readouterr().out


def test_a_worker_is_timed_with_its_share_of_the_cores(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "many.toml").write_text('title = "many workers"\n[node]\nworkers = 4096\n')
    words = ("--net", "net.prototxt", "--cluster", "many.toml", "--workers", "1", "--strategy", "sync", "--json")
    command = [sys.executable, "-P", "-m", "samovar.cli.entry", "predict", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=True)
    assert "threads: 1," in json.loads(done.stdout)["profile"]
    command += ["--threads-per-worker", "100000"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 2
    assert "--threads-per-worker" in done.stderr


def test_made_up_inputs_are_valid_classes_and_words(tmp_path: Path) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text(
        'layer { name: "in" type: "Input" top: "words" top: "y" input_param { shape { dim: 6 dim: 4 } '
        "shape { dim: 6 dim: 4 dim: 1 } } }\n"
        'layer { name: "e" type: "Embed" bottom: "words" top: "e" embed_param { input_dim: 9 num_output: 5 } }\n'
        'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "e" bottom: "y" top: "loss" softmax_param { axis: 2 } }\n'
    )
    assert net_profile(net, is_solver=False, batch_size=None, threads=1, is_timed=True)[0].iterations > 0
