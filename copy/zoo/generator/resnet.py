"""ResNet-50: sixteen bottlenecks of three convolutions, each added to what came in."""

from generator.imagenet import DATA_SAYS, MEAN_IMAGE, NUM_CLASSES, databases, momentum, solver, steps
from generator.model import Model
from generator.net import MSRA, Net
from generator.prototxt import TRUE

_TEST_BATCH_SIZE = 25
_STAGES = {2: (64, "abc"), 3: (128, "abcd"), 4: (256, "abcdef"), 5: (512, "abc")}  # channels inside, blocks


def _body(net: Net, data: str) -> str:
    x = _convolution(net, "conv1", "_conv1", data, 64, 7, stride=2, pad=3)
    x = net.relu("conv1_relu", x)
    x = net.pool("pool1", x, "MAX", 3, 2)
    for stage, (channels, blocks) in _STAGES.items():
        for block in blocks:
            is_first = block == "a"
            stride = 2 if is_first and stage > 2 else 1
            x = _bottleneck(net, f"{stage}{block}", x, channels, stride, projects=is_first)
    x = net.global_mean("pool5", x)
    return net.inner_product("fc1000", x, NUM_CLASSES, weight=MSRA)


def _bottleneck(net: Net, name: str, x: str, channels: int, stride: int, projects: bool) -> str:
    """Convolutions of 1, 3 and 1; what came in is added as it is, or projected by a convolution of 1."""
    shortcut = _branch(net, name, "1", x, 4 * channels, 1, stride) if projects else x
    x = _branch(net, name, "2a", x, channels, 1, stride)
    x = net.relu(f"res{name}_branch2a_relu", x)
    x = _branch(net, name, "2b", x, channels, 3)
    x = net.relu(f"res{name}_branch2b_relu", x)
    x = _branch(net, name, "2c", x, 4 * channels, 1)
    return net.relu(f"res{name}_relu", net.add(f"res{name}", [shortcut, x]))


def _branch(net: Net, block: str, branch: str, x: str, num_output: int, kernel: int, stride: int = 1) -> str:
    tail = f"{block}_branch{branch}"
    return _convolution(net, f"res{tail}", tail, x, num_output, kernel, stride=stride, pad=kernel // 2)


def _convolution(
    net: Net, name: str, tail: str, x: str, num_output: int, kernel: int, *, stride: int = 1, pad: int = 0
) -> str:
    """A convolution, normalized over the batch, with a learned factor and term."""
    x = net.convolution(name, x, num_output, kernel, stride=stride, pad=pad, weight=MSRA, bias_term=False)
    x = net.layer("BatchNorm", f"bn{tail}", [x], [x])
    return net.layer("Scale", f"scale{tail}", [x], [x], scale_param={"bias_term": TRUE})


_TRAIN, _TEST = databases(224, MEAN_IMAGE, 32, _TEST_BATCH_SIZE)

RESNET50 = Model(
    name="resnet50",
    about=(
        "ResNet-50: 53 convolutions, one inner product, 25,557,032 learned parameters.\n"
        "He, Zhang, Ren, Sun, Deep residual learning for image recognition, 2016 (projections where sizes change).\n"
        f"{DATA_SAYS}"
    ),
    image_shape=(3, 224, 224),
    train=_TRAIN,
    test=_TEST,
    body=_body,
    multipliers=(),
    solvers={
        "solver": (
            "120 epochs in batches of 256. The paper divides the rate by 10 when the error stops falling.",
            solver(
                "resnet50",
                max_iter=600_000,
                test_batch_size=_TEST_BATCH_SIZE,
                rate=steps(0.1, 150_000),
                rule=[("iter_size", 8, "x 32 = batches of 256"), *momentum(0.0001)],
            ),
        )
    },
)
