"""GoogLeNet: nine inception modules, two classifiers on the way that train only."""

from typing import NamedTuple

from generator.imagenet import DATA_SAYS, MEAN_COLOUR, NUM_CLASSES, databases, momentum, solver
from generator.model import Model
from generator.net import XAVIER, Net, constant

_TEST_BATCH_SIZE = 50
_NORM = {"local_size": 5, "alpha": 0.0001, "beta": 0.75}
_BIAS = constant(0.2)


class _Inception(NamedTuple):
    """Numbers of outputs, in the order of the paper's table 1."""

    direct: int
    reduce_3: int
    out_3: int
    reduce_5: int
    out_5: int
    pooled: int


_STAGES = {
    3: {"a": _Inception(64, 96, 128, 16, 32, 32), "b": _Inception(128, 128, 192, 32, 96, 64)},
    4: {
        "a": _Inception(192, 96, 208, 16, 48, 64),
        "b": _Inception(160, 112, 224, 24, 64, 64),
        "c": _Inception(128, 128, 256, 24, 64, 64),
        "d": _Inception(112, 144, 288, 32, 64, 64),
        "e": _Inception(256, 160, 320, 32, 128, 128),
    },
    5: {"a": _Inception(256, 160, 320, 32, 128, 128), "b": _Inception(384, 192, 384, 48, 128, 128)},
}
_AUXILIARY = {"4a": "loss1", "4d": "loss2"}  # classifiers on these modules' outputs


def _body(net: Net, data: str) -> str:
    x = _convolution(net, "conv1/7x7_s2", "conv1/relu_7x7", data, 64, 7, stride=2, pad=3)
    x = net.pool("pool1/3x3_s2", x, "MAX", 3, 2)
    x = net.response_norm("pool1/norm1", x, _NORM)
    x = _convolution(net, "conv2/3x3_reduce", "conv2/relu_3x3_reduce", x, 64, 1)
    x = _convolution(net, "conv2/3x3", "conv2/relu_3x3", x, 192, 3, pad=1)
    x = net.response_norm("conv2/norm2", x, _NORM)
    x = net.pool("pool2/3x3_s2", x, "MAX", 3, 2)
    for stage, modules in _STAGES.items():
        for letter, sizes in modules.items():
            x = _inception(net, f"inception_{stage}{letter}", x, sizes)
            if net.learns and f"{stage}{letter}" in _AUXILIARY:
                _auxiliary(net, _AUXILIARY[f"{stage}{letter}"], x)
        if stage < 5:
            x = net.pool(f"pool{stage}/3x3_s2", x, "MAX", 3, 2)
    x = net.pool("pool5/7x7_s1", x, "AVE", 7)
    x = net.dropout("pool5/drop_7x7_s1", x, 0.4)
    return net.inner_product("loss3/classifier", x, NUM_CLASSES, weight=XAVIER)


def _inception(net: Net, name: str, x: str, sizes: _Inception) -> str:
    """Convolutions of 1, 3 and 5, the larger ones of fewer channels, and pooling, side by side."""
    direct = _branch(net, name, "1x1", x, sizes.direct, 1)
    reduced = _branch(net, name, "3x3_reduce", x, sizes.reduce_3, 1)
    threes = _branch(net, name, "3x3", reduced, sizes.out_3, 3)
    reduced = _branch(net, name, "5x5_reduce", x, sizes.reduce_5, 1)
    fives = _branch(net, name, "5x5", reduced, sizes.out_5, 5)
    pooled = net.pool(f"{name}/pool", x, "MAX", 3, pad=1)
    pooled = _branch(net, name, "pool_proj", pooled, sizes.pooled, 1)
    return net.concat(f"{name}/output", [direct, threes, fives, pooled])


def _branch(net: Net, module: str, name: str, x: str, num_output: int, kernel: int) -> str:
    return _convolution(net, f"{module}/{name}", f"{module}/relu_{name}", x, num_output, kernel, pad=kernel // 2)


def _convolution(
    net: Net, name: str, relu: str, x: str, num_output: int, kernel: int, stride: int = 1, pad: int = 0
) -> str:
    x = net.convolution(name, x, num_output, kernel, stride=stride, pad=pad, weight=XAVIER, bias=_BIAS)
    return net.relu(relu, x)


def _auxiliary(net: Net, name: str, x: str) -> None:
    """A classifier whose loss counts 0.3."""
    net.comment("A classifier on the way: its gradient reaches the lower layers sooner.")
    x = net.pool(f"{name}/ave_pool", x, "AVE", 5, 3)
    x = _convolution(net, f"{name}/conv", f"{name}/relu_conv", x, 128, 1)
    x = net.inner_product(f"{name}/fc", x, 1024, weight=XAVIER, bias=_BIAS)
    x = net.relu(f"{name}/relu_fc", x)
    x = net.dropout(f"{name}/drop_fc", x, 0.7)
    x = net.inner_product(f"{name}/classifier", x, NUM_CLASSES, weight=XAVIER)
    net.softmax_loss(f"{name}/loss", x, top=f"{name}/{name}", weight=0.3)


_TRAIN, _TEST = databases(224, MEAN_COLOUR, 32, _TEST_BATCH_SIZE)

GOOGLENET = Model(
    name="googlenet",
    about=(
        "GoogLeNet: 22 layers with weights, nine inception modules; 6,998,552 parameters, and 6,379,728 more in two\n"
        "classifiers that train only.\n"
        "Szegedy et al., Going deeper with convolutions, 2015. Fillers and the solver's rates: as Caffe's replication\n"
        f"of the paper trains.\n{DATA_SAYS}"
    ),
    image_shape=(3, 224, 224),
    train=_TRAIN,
    test=_TEST,
    body=_body,
    loss_name="loss3/loss3",
    solvers={
        "solver": (
            "60 epochs in batches of 32.",
            solver(
                "googlenet",
                max_iter=2_400_000,
                test_batch_size=_TEST_BATCH_SIZE,
                rate=[
                    ("base_lr", 0.01),
                    ("lr_policy", "poly", "base_lr (1 - iteration / max_iter)^power"),
                    ("power", 0.5),
                ],
                rule=[("average_loss", 40), *momentum(0.0002)],
            ),
        )
    },
)
