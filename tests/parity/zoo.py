"""The zoo's nets with random weights under which every layer's output has a size near 1."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from samovar.formats.caffe.caffemodel import LayerRecord, encode_caffemodel
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.net import CaffeNet, build_net

Images = npt.NDArray[np.float32]

SMALL = ("lenet", "cifar10_quick", "cifar10_full")
LARGE = (
    *("alexnet", "caffenet", "nin", "googlenet", "vgg16", "vgg19"),
    *("resnet50", "inception_resnet_v2"),
)
_COUNT = 3.0  # BatchNorm's sums are divided by it


def random_images(deploy: Path, batch_size: int, seed: int = 5) -> Images:
    """Float32 (N, C, H, W), standard normal, of the size that the deploy net takes."""
    _, *sizes = load_net(deploy).input_shapes("TEST")["data"]
    return np.random.default_rng(seed).standard_normal((batch_size, *sizes)).astype(np.float32)


def write_random_weights(deploy: Path, caffemodel: Path) -> None:
    """A caffemodel for the deploy net: its fillers' weights, each layer's scaled by what a batch of 1 shows of it."""
    net = build_net(load_net(deploy), "TEST", {}, seed=11)
    generator = torch.Generator().manual_seed(12)
    with torch.no_grad(), _scaling(net, generator):
        net({"data": torch.from_numpy(random_images(deploy, 1, seed=13))})
    arrays = {info.name: info.parameter.detach().numpy() for info in net.parameter_infos}
    records = [
        LayerRecord(o.name, o.type, o.bottoms, o.tops, [arrays[name] for name in o.parameter_names])
        for o in net.layers_for_caffemodel()
    ]
    caffemodel.write_bytes(encode_caffemodel(net.name, records))


@contextmanager
def _scaling(net: CaffeNet, generator: torch.Generator) -> Iterator[None]:
    """Sets each layer's parameters as the first images pass through."""

    def before(layer: nn.Module, bottoms: tuple[torch.Tensor, ...]) -> None:
        assert isinstance(layer, Layer)
        if layer.spec.type == "BatchNorm":
            mean, variance, count = layer.caffe_parameters()
            axes = (0, 2, 3)
            mean.copy_(_COUNT * bottoms[0].mean(axes))
            variance.copy_(_COUNT * (bottoms[0].var(axes, correction=0) + 0.1))
            count.fill_(_COUNT)
        elif layer.spec.type == "Scale":
            factor, term = layer.caffe_parameters()
            factor.uniform_(0.5, 1.5, generator=generator)
            term.normal_(0, 0.1, generator=generator)

    def after(layer: nn.Module, _bottoms: tuple[torch.Tensor, ...], tops: tuple[torch.Tensor, ...]) -> object:
        assert isinstance(layer, Layer)
        weight, *bias = layer.caffe_parameters()
        weight.div_(tops[0].std())
        for term in bias:
            term.normal_(0, 0.1, generator=generator)
        return layer.forward(*_bottoms)

    with_weights = [layer for layer in net.layers if layer.spec.type in ("Convolution", "InnerProduct")]
    normalizing = [layer for layer in net.layers if layer.spec.type in ("BatchNorm", "Scale")]
    handles = [layer.register_forward_hook(after) for layer in with_weights]
    handles += [layer.register_forward_pre_hook(before) for layer in normalizing]
    yield
    for handle in handles:
        handle.remove()
