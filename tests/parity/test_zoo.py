"""The zoo: the files match the generator, sizes and rates are the published ones, and two other
programs, OpenCV (from the same files) and onnxruntime (from our export), compute what we compute."""

import math
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import samovar.caffe
from samovar.caffe import Net
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.net import CaffeNet, build_net
from samovar.frontends.caffe.onnx_export import encode_onnx
from samovar.frontends.caffe.solver import load_solver
from tests.parity.onnx_runtime import run_onnx
from tests.parity.zoo import LARGE, SMALL, Images, random_images, write_random_weights

TOLERANCE = 1e-4  # largest difference over the largest value

# Learned parameters of the deploy net; published figures but for those marked.
PARAMETERS = {
    "lenet": 431_080,
    "cifar10_quick": 145_578,
    "cifar10_full": 89_578,
    "alexnet": 60_965_224,
    "caffenet": 60_965_224,
    "nin": 7_595_176,  # from the definition; published: a file of 29 MB
    "googlenet": 6_998_552,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "resnet50": 25_557_032,
    "inception_resnet_v2": 55_813_192 + 30_272,  # published, and a factor for each normalized channel (definition)
}
GOOGLENET_WITH_AUXILIARY = 13_378_280
# Iterations, first rate, weight decay, images a step.
PUBLISHED_RATES = {
    "lenet": (10_000, 0.01, 0.0005, 64),
    "cifar10_quick": (4_000, 0.001, 0.004, 100),
    "cifar10_full": (60_000, 0.001, 0.004, 100),
    "alexnet": (450_000, 0.01, 0.0005, 256),
    "caffenet": (450_000, 0.01, 0.0005, 256),
    "nin": (450_000, 0.01, 0.0005, 64),
    "googlenet": (2_400_000, 0.01, 0.0002, 32),
    "vgg16": (370_000, 0.01, 0.0005, 256),
    "vgg19": (370_000, 0.01, 0.0005, 256),
    "resnet50": (600_000, 0.1, 0.0001, 256),
    "inception_resnet_v2": (6_405_835, 0.045, 0.00004, 32),
}


@pytest.fixture
def zoo(repository_root: Path) -> Path:
    return repository_root / "examples/zoo"


def files_under(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.glob("*/*.prototxt"))}


def test_the_files_are_what_the_generator_writes(zoo: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-B", str(zoo / "generate.py"), str(tmp_path)], check=True, timeout=200)
    written, kept = files_under(tmp_path), files_under(zoo)
    assert written.keys() == kept.keys()
    assert [name for name in kept if kept[name] != written[name]] == []
    assert {name.split("/")[0] for name in kept} == {*SMALL, *LARGE} == PARAMETERS.keys()


def without_fillers(prototxt: Path, folder: Path) -> Path:
    """The same net that starts from zeros; zeros need no memory on torch's device "meta"."""
    path = folder / prototxt.name
    path.write_text(re.sub(r"\w+_filler \{[^}]*\}", "", prototxt.read_text()))
    return path


def num_learned(net: CaffeNet) -> int:
    return sum(info.parameter.numel() for info in net.parameter_infos if not info.is_statistic)


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters(zoo: Path, tmp_path: Path, name: str) -> None:
    deploy = load_net(without_fillers(zoo / name / "deploy.prototxt", tmp_path))
    train_val = load_net(without_fillers(zoo / name / "train_val.prototxt", tmp_path))
    _, *sizes = deploy.input_shapes("TEST")["data"]
    data = {"data": (1, *sizes), "label": (1,)}

    with torch.device("meta"):
        deployed, trained = build_net(deploy, "TEST", {}, seed=1), build_net(train_val, "TRAIN", data, seed=1)

    assert deploy.warnings == train_val.warnings == ()
    assert num_learned(deployed) == PARAMETERS[name]
    assert num_learned(trained) == (GOOGLENET_WITH_AUXILIARY if name == "googlenet" else PARAMETERS[name])


@pytest.mark.parametrize("name", PARAMETERS)
def test_solvers(zoo: Path, name: str) -> None:
    iterations, rate, decay, batch_size = PUBLISHED_RATES[name]
    solver = load_solver(zoo / name / "solver.prototxt")
    net = load_net(solver.net.path)
    (data,) = [spec for spec in net.in_phase("TRAIN") if spec.type == "Data"]
    (test_data,) = [spec for spec in net.in_phase("TEST") if spec.type == "Data"]
    (test,) = solver.test_nets

    assert solver.warnings == ()
    assert (solver.max_iter, solver.base_lr) == (iterations, pytest.approx(rate))
    assert solver.weight_decay == pytest.approx(decay)
    assert data.message.data_param.batch_size * solver.iter_size == batch_size
    tested = test.num_batches * test_data.message.data_param.batch_size
    assert tested == (10_000 if name in SMALL else 50_000)


@pytest.mark.parametrize(
    ("name", "steps"), [("cifar10_quick", (4_000, 5_000)), ("cifar10_full", (60_000, 65_000, 70_000))]
)
def test_the_solvers_of_cifar10_follow_each_other(zoo: Path, name: str, steps: tuple[int, ...]) -> None:
    solvers = [load_solver(path) for path in sorted((zoo / name).glob("solver*.prototxt"))]
    assert [solver.max_iter for solver in solvers] == list(steps)
    assert [solver.base_lr for solver in solvers] == pytest.approx([0.001 / 10**stage for stage in range(len(steps))])


@pytest.mark.parametrize("name", ["cifar10_quick", "cifar10_full"])
def test_a_fresh_net_knows_nothing(zoo: Path, name: str) -> None:
    """The fillers give even scores: the loss is that of guessing."""
    net = build_net(load_net(zoo / name / "train_val.prototxt"), "TRAIN", {"data": (4, 3, 32, 32), "label": (4,)}, 1)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1)) * 64
    output = net({"data": images, "label": torch.arange(4)})
    assert output.loss is not None
    assert output.loss.item() == pytest.approx(math.log(10), abs=0.01)


@dataclass(frozen=True)
class Weighted:
    """A net of the zoo with random weights, images, and what we compute of them."""

    deploy: Path
    caffemodel: Path
    net: Net
    images: Images
    expected: Images


@pytest.fixture(
    scope="module",
    params=[*SMALL, *(pytest.param(name, marks=[pytest.mark.slow, pytest.mark.timeout(300)]) for name in LARGE)],
)
def weighted(
    request: pytest.FixtureRequest, repository_root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Weighted]:
    name: str = request.param
    deploy = repository_root / "examples/zoo" / name / "deploy.prototxt"
    caffemodel = tmp_path_factory.mktemp(name) / "random.caffemodel"
    write_random_weights(deploy, caffemodel)
    net = samovar.caffe.load(deploy, caffemodel)
    images = random_images(deploy, batch_size=3 if name in SMALL else 1)
    with torch.no_grad():
        expected = net(torch.from_numpy(images)).numpy()
    yield Weighted(deploy, caffemodel, net, images, expected)
    caffemodel.unlink()  # up to 575 MB


def assert_near(found: Images, expected: Images) -> None:
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_opencv_computes_the_same(weighted: Weighted) -> None:
    cv2 = pytest.importorskip("cv2", reason="needs opencv-python-headless below 5, which reads Caffe's files")
    net = cv2.dnn.readNetFromCaffe(str(weighted.deploy), str(weighted.caffemodel))
    net.enableWinograd(False)  # its fast convolution is ten times less exact
    net.setInput(weighted.images)
    assert_near(net.forward(), weighted.expected)


def test_onnxruntime_computes_the_same(weighted: Weighted) -> None:
    (found,) = run_onnx(encode_onnx(weighted.net), {"data": weighted.images}).values()
    assert_near(found, weighted.expected)
