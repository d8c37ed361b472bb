"""Inception-ResNet-v2: inception modules whose output, scaled down, is added to what came in."""

from generator.imagenet import NUM_CLASSES, databases, solver
from generator.model import Model
from generator.net import MSRA, XAVIER, Net, Size
from generator.prototxt import TRUE

_TEST_BATCH_SIZE = 25
_BATCH_NORM = {"moving_average_fraction": 0.9997, "eps": 0.001}
_BATCHES_PER_EPOCH = 1_281_167 / 32


def _body(net: Net, data: str) -> str:
    x = _stem(net, data)
    for number in range(1, 11):
        x = _block_a(net, f"inception_a{number}", x)
    x = _reduction_a(net, "reduction_a", x)
    for number in range(1, 21):
        x = _block_b(net, f"inception_b{number}", x)
    x = _reduction_b(net, "reduction_b", x)
    for number in range(1, 11):
        is_last = number == 10
        x = _block_c(net, f"inception_c{number}", x, factor=1.0 if is_last else 0.2, is_last=is_last)
    x = _convolution(net, "conv_last", x, 1536, 1)
    x = net.global_mean("pool_last", x)
    x = net.dropout("drop_last", x, 0.2)
    return net.inner_product("classifier", x, NUM_CLASSES, weight=XAVIER)


def _stem(net: Net, data: str) -> str:
    """From 299 x 299 to 320 channels of 35 x 35."""
    x = _convolution(net, "conv1", data, 32, 3, stride=2)
    x = _convolution(net, "conv2", x, 32, 3)
    x = _convolution(net, "conv3", x, 64, 3, pad=1)
    x = net.pool("pool3", x, "MAX", 3, 2)
    x = _convolution(net, "conv4_1x1", x, 80, 1)
    x = _convolution(net, "conv4", x, 192, 3)
    x = net.pool("pool4", x, "MAX", 3, 2)
    pooled = net.pool("stem_pool", x, "AVE", 3, pad=1)
    branches = [
        _convolution(net, "stem_1x1", x, 96, 1),
        _chain(net, "stem_5x5", x, [(48, 1), (64, 5)]),
        _chain(net, "stem_3x3", x, [(64, 1), (96, 3), (96, 3)]),
        _convolution(net, "stem_pooled", pooled, 64, 1),
    ]
    return net.concat("stem", branches)


def _block_a(net: Net, name: str, x: str) -> str:
    branches = [
        _convolution(net, f"{name}_1x1", x, 32, 1),
        _chain(net, f"{name}_3x3", x, [(32, 1), (32, 3)]),
        _chain(net, f"{name}_3x3_twice", x, [(32, 1), (48, 3), (64, 3)]),
    ]
    return _added(net, name, x, branches, 320, factor=0.17)


def _block_b(net: Net, name: str, x: str) -> str:
    branches = [
        _convolution(net, f"{name}_1x1", x, 192, 1),
        _chain(net, f"{name}_7x7", x, [(128, 1), (160, (1, 7)), (192, (7, 1))]),
    ]
    return _added(net, name, x, branches, 1088, factor=0.1)


def _block_c(net: Net, name: str, x: str, factor: float, is_last: bool) -> str:
    branches = [
        _convolution(net, f"{name}_1x1", x, 192, 1),
        _chain(net, f"{name}_3x3", x, [(192, 1), (224, (1, 3)), (256, (3, 1))]),
    ]
    return _added(net, name, x, branches, 2080, factor=factor, rectifies=not is_last)


def _reduction_a(net: Net, name: str, x: str) -> str:
    """To 1,088 channels of 17 x 17."""
    branches = [
        _convolution(net, f"{name}_3x3", x, 384, 3, stride=2),
        _halving_chain(net, f"{name}_3x3_twice", x, [(256, 1), (256, 3)], 384),
        net.pool(f"{name}_pool", x, "MAX", 3, 2),
    ]
    return net.concat(name, branches)


def _reduction_b(net: Net, name: str, x: str) -> str:
    """To 2,080 channels of 8 x 8."""
    branches = [
        _halving_chain(net, f"{name}_3x3_384", x, [(256, 1)], 384),
        _halving_chain(net, f"{name}_3x3_288", x, [(256, 1)], 288),
        _halving_chain(net, f"{name}_3x3_twice", x, [(256, 1), (288, 3)], 320),
        net.pool(f"{name}_pool", x, "MAX", 3, 2),
    ]
    return net.concat(name, branches)


def _added(
    net: Net, name: str, x: str, branches: list[str], channels: int, *, factor: float, rectifies: bool = True
) -> str:
    """The branches brought to `channels` by a convolution of 1, times `factor`, added to x."""
    joined = net.concat(f"{name}_concat", branches)
    up = net.convolution(f"{name}_up", joined, channels, 1, weight=XAVIER)
    total = net.add(name, [x, up], factors=[1.0, factor])
    return net.relu(f"{name}_relu", total) if rectifies else total


def _halving_chain(net: Net, name: str, x: str, sizes: list[tuple[int, Size]], num_output: int) -> str:
    x = _chain(net, name, x, sizes)
    return _convolution(net, f"{name}_{len(sizes) + 1}", x, num_output, 3, stride=2)


def _chain(net: Net, name: str, x: str, sizes: list[tuple[int, Size]]) -> str:
    """Convolutions one after the other, each with its number of outputs and kernel, keeping the image's size."""
    for number, (num_output, kernel) in enumerate(sizes, start=1):
        pad = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
        x = _convolution(net, f"{name}_{number}", x, num_output, kernel, pad=pad)
    return x


def _convolution(net: Net, name: str, x: str, num_output: int, kernel: Size, *, stride: int = 1, pad: Size = 0) -> str:
    """A convolution, normalized over the batch, with a learned factor and term, rectified."""
    x = net.convolution(name, x, num_output, kernel, stride=stride, pad=pad, weight=MSRA, bias_term=False)
    x = net.layer("BatchNorm", f"{name}_bn", [x], [x], batch_norm_param=_BATCH_NORM)
    x = net.layer("Scale", f"{name}_scale", [x], [x], scale_param={"bias_term": TRUE})
    return net.relu(f"{name}_relu", x)


_TRAIN, _TEST = databases(
    299, {"mean_value": 127.5, "scale": 1 / 127.5}, 32, _TEST_BATCH_SIZE, folder="data/ilsvrc12_320"
)

INCEPTION_RESNET_V2 = Model(
    name="inception_resnet_v2",
    about=(
        "Inception-ResNet-v2: 244 convolutions, one inner product, 55,843,464 learned parameters.\n"
        "Szegedy, Ioffe, Vanhoucke, Alemi, Inception-v4, Inception-ResNet and the impact of residual connections on\n"
        "learning, 2017; numbers of channels are those of the authors' published model (55,813,192 parameters), to\n"
        "which Caffe's Scale adds a factor for each normalized channel. Without the classifier on the way.\n"
        "The databases hold images of 320 x 320."
    ),
    image_shape=(3, 299, 299),
    train=_TRAIN,
    test=_TEST,
    body=_body,
    multipliers=(),
    solvers={
        "solver": (
            "160 epochs in batches of 32. In the paper 20 workers of this batch share one server; its eps of 1 stands\n"
            "inside the root, Caffe's delta outside.",
            solver(
                "inception_resnet_v2",
                max_iter=round(160 * _BATCHES_PER_EPOCH),
                test_batch_size=_TEST_BATCH_SIZE,
                rate=[
                    ("base_lr", 0.045),
                    ("lr_policy", "step"),
                    ("gamma", 0.94),
                    ("stepsize", round(2 * _BATCHES_PER_EPOCH), "two epochs"),
                ],
                rule=[("type", "RMSProp"), ("rms_decay", 0.9), ("delta", 1.0), ("weight_decay", 0.00004)],
            ),
        )
    },
)
