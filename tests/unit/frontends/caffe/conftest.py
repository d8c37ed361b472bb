"""Nets from a few lines of text."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from samovar.frontends.caffe.definition import CaffeNetDefinition, load_net
from samovar.frontends.caffe.net import CaffeNet, build_net

BuildNet = Callable[..., CaffeNet]
RunLayer = Callable[..., dict[str, np.ndarray]]


@pytest.fixture
def definition_of(tmp_path: Path) -> Callable[[str], CaffeNetDefinition]:
    def load(text: str) -> CaffeNetDefinition:
        path = tmp_path / "net.prototxt"
        path.write_text(text)
        return load_net(path)

    return load


@pytest.fixture
def net_of(definition_of: Callable[[str], CaffeNetDefinition]) -> BuildNet:
    """A net of the text; `inputs` are the shapes of Input layers put before it."""

    def build(
        text: str,
        inputs: Mapping[str, tuple[int, ...]] | None = None,
        phase: Literal["TRAIN", "TEST"] = "TRAIN",
        data_shapes: Mapping[str, tuple[int, ...]] | None = None,
        seed: int = 1,
    ) -> CaffeNet:
        lines = [
            f'layer {{ name: "{name}" type: "Input" top: "{name}" input_param {{ shape {{ '
            + " ".join(f"dim: {size}" for size in shape)
            + " } } }\n"
            for name, shape in (inputs or {}).items()
        ]
        return build_net(definition_of("".join(lines) + text), phase, data_shapes or {}, seed)

    return build


@pytest.fixture
def run_layer(net_of: BuildNet) -> RunLayer:
    """Outputs (by top) and gradients ("d data", "d layer/0") of one layer `x`, for sum(output * top_gradient)."""

    def run(
        settings: str,
        inputs: Mapping[str, np.ndarray],
        top_gradient: np.ndarray | None = None,
        parameters: Mapping[str, np.ndarray] | None = None,
        phase: Literal["TRAIN", "TEST"] = "TRAIN",
        channels_last: bool = False,
    ) -> dict[str, np.ndarray]:
        bottoms = " ".join(f'bottom: "{name}"' for name in inputs)
        net = net_of(f'layer {{ name: "x" {bottoms} {settings} }}', {n: a.shape for n, a in inputs.items()}, phase)
        for info in net.parameter_infos:
            info.parameter.data.copy_(torch.from_numpy(np.asarray((parameters or {})[info.name])))
        batch = {name: torch.from_numpy(np.array(array)) for name, array in inputs.items()}
        if channels_last:
            batch["data"] = batch["data"].contiguous(memory_format=torch.channels_last)
        if top_gradient is not None:
            batch["data"].requires_grad_()
        found: dict[str, torch.Tensor] = {}
        (layer,) = net.layers
        with _outputs_of(layer, found):
            output = net(batch)
        result = {name: value.detach().numpy() for name, value in output.scalars.items()}
        if top_gradient is not None:
            first = found["top 0"]
            gradient = torch.from_numpy(np.asarray(top_gradient, np.float32)).reshape(first.shape)
            names = ["d data", *(f"d {info.name}" for info in net.parameter_infos)]
            leaves = [batch["data"], *(info.parameter for info in net.parameter_infos)]
            gradients = torch.autograd.grad(first, leaves, gradient)
            result |= {name: value.numpy() for name, value in zip(names, gradients, strict=True)}
        return result

    return run


class _outputs_of:
    """Keeps a layer's tops, with their graph, as "top 0", "top 1"."""

    def __init__(self, layer: torch.nn.Module, found: dict[str, torch.Tensor]) -> None:
        self._layer, self._found = layer, found

    def __enter__(self) -> None:
        self._handle = self._layer.register_forward_hook(self._keep)

    def __exit__(self, *_: object) -> None:
        self._handle.remove()

    def _keep(self, _layer: object, _inputs: object, outputs: tuple[torch.Tensor, ...]) -> None:
        self._found.update({f"top {index}": value for index, value in enumerate(outputs)})


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
