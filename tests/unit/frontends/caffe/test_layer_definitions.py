"""Every layer against its definition in float64: forward, and backward against central differences of it."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.layers.registry import DATA_TYPES, INPUT_TYPES, SUPPORTED
from samovar.frontends.caffe.net import CaffeNet, build_net
from samovar.frontends.caffe.parameters import ParameterInfo
from tests.unit.frontends.caffe.reference import losses, sequences, shapes, values, windows
from tests.unit.frontends.caffe.reference.case import Array, Case, Draw

TOLERANCE = 1e-4  # of an array's largest value
# Smaller arrays count as this large. A saturated gate's output is near 1, so its float32 is off by up to 6e-8, its
# derivative, y (1 - y) or 1 - y^2, by 1.2e-7, and a gradient by some of these times weights of 1 to 3.
SMALLEST_OUTPUT, SMALLEST_GRADIENT = 1e-3, 1e-2
STEP = 1e-5
MOST_DIFFERENCES = 40  # of one array; of a larger one, so many of its values at random
CASES = {**values.CASES, **shapes.CASES, **windows.CASES, **losses.CASES, **sequences.CASES}
TESTED_ELSEWHERE = {*DATA_TYPES, *INPUT_TYPES, "DummyData", "HDF5Output", "Silence"}


@pytest.fixture(scope="session")
def net_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("layer") / "net.prototxt"


def thorough(num_examples: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return settings(
        max_examples=num_examples,
        database=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("name", CASES)
@thorough(10)
@given(data=st.data())
def test_forward_and_backward(name: str, net_file: Path, data: st.DataObject) -> None:
    check(CASES[name], Draw(data), net_file)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
@thorough(200)
@given(data=st.data())
def test_forward_and_backward_at_length(name: str, net_file: Path, data: st.DataObject) -> None:
    check(CASES[name], Draw(data), net_file)


def test_every_supported_type_is_among_them(net_file: Path) -> None:
    seen = set()

    @thorough(2)
    @given(data=st.data())
    def types(data: st.DataObject) -> None:
        seen.update(make(Draw(data)).type for make in CASES.values())

    types()
    assert seen | TESTED_ELSEWHERE == set(SUPPORTED)


def check(make: Callable[[Draw], Case], draw: Draw, path: Path) -> None:
    case = make(draw)
    net = net_of(case, path, in_place=case.can_work_in_place and draw.one_of(False, True))
    inputs = [torch.from_numpy(array.copy()) for array in case.inputs]
    if draw.one_of(False, True):
        inputs = [t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t for t in inputs]
    if case.has_gradient:
        for index, tensor in enumerate(inputs):
            tensor.requires_grad_(index not in case.fixed)
    tops = outputs_of(net, inputs)
    exact = [np.array(array, np.float64, order="C") for array in (*case.inputs, *case.parameters)]
    expected = case.reference(*exact)
    for top, array in zip(tops, expected, strict=True):
        assert_near(top.detach().numpy(), array, "output")
    if case.has_gradient:
        learned = [info.parameter for info in parameters_of(net)]
        wanted = [t for t in (*inputs, *learned) if t.requires_grad]
        places = [index for index, t in enumerate((*inputs, *learned)) if t.requires_grad]
        check_gradients(case, tops, wanted, exact, places)


def check_gradients(
    case: Case, tops: Sequence[torch.Tensor], wanted: list[torch.Tensor], exact: list[Array], places: list[int]
) -> None:
    rng = np.random.default_rng(0)
    weights = [
        np.asarray(rng.uniform(0.5, 1.5, top.shape) * (index not in case.fixed_tops), np.float32)
        for index, top in enumerate(tops)
    ]
    total = torch.stack([(top * torch.from_numpy(w)).sum() for top, w in zip(tops, weights, strict=True)]).sum()
    gradients = torch.autograd.grad(total, wanted)

    def value() -> float:
        outputs = case.reference(*exact)
        return sum(float((y * w).sum()) for y, w in zip(outputs, weights, strict=True))

    for place, gradient in zip(places, gradients, strict=True):
        size = exact[place].size
        chosen = np.sort(rng.permutation(size)[:MOST_DIFFERENCES])
        ours = gradient.contiguous().numpy()
        assert ours.shape == exact[place].shape
        differences = central_differences(value, exact[place].reshape(-1), chosen)
        assert_near(ours.reshape(-1)[chosen], differences, f"gradient of argument {place}", SMALLEST_GRADIENT)


def central_differences(value: Callable[[], float], flat: Array, chosen: Array) -> Array:
    """(value(x + h) - value(x - h)) / 2h at the chosen places of `flat`, a view of what `value` computes from."""
    result = np.zeros(len(chosen))
    for number, index in enumerate(chosen):
        middle = flat[index]
        flat[index] = middle + STEP
        above = value()
        flat[index] = middle - STEP
        result[number] = (above - value()) / (2 * STEP)
        flat[index] = middle
    return result


def assert_near(ours: Array, expected: Array, what: str, smallest: float = SMALLEST_OUTPUT) -> None:
    assert ours.shape == expected.shape, what
    difference = np.abs(ours - expected).max()
    assert difference <= TOLERANCE * max(smallest, np.abs(expected).max()), what


def net_of(case: Case, path: Path, in_place: bool) -> CaffeNet:
    lines = [
        f'layer {{ name: "in{index}" type: "Input" top: "in{index}" input_param {{ shape {{ '
        + " ".join(f"dim: {size}" for size in array.shape)
        + " } } }\n"
        for index, array in enumerate(case.inputs)
    ]
    path.write_text("".join(lines) + case.text(in_place))
    net = build_net(load_net(path), "TEST" if case.phase == "TEST" else "TRAIN", {}, seed=0)
    for info, array in zip(parameters_of(net), case.parameters, strict=True):
        assert tuple(info.parameter.shape) == array.shape
        info.parameter.data.copy_(torch.from_numpy(np.asarray(array)))
    return net


def parameters_of(net: CaffeNet) -> list[ParameterInfo]:
    return [info for info in net.parameter_infos if info.layer == "x"]


def outputs_of(net: CaffeNet, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    found: list[tuple[torch.Tensor, ...]] = []
    net.layers[-1].register_forward_hook(lambda _layer, _inputs, tops: found.append(tops))
    net({f"in{index}": tensor for index, tensor in enumerate(inputs)})
    return found[0]
