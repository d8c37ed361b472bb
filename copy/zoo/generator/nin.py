"""Network in network for ImageNet: each convolution followed by two of 1 x 1, no inner product at the end."""

from generator.imagenet import DATA_SAYS, MEAN_IMAGE, NUM_CLASSES, databases, momentum, solver, steps
from generator.model import Model
from generator.net import Net, gaussian

_TEST_BATCH_SIZE = 50


def _body(net: Net, data: str) -> str:
    x = net.convolution("conv1", data, 96, 11, stride=4, weight=gaussian(0.01))
    x = _mixed_twice(net, net.relu("relu0", x), 1, (96, 96))
    x = net.pool("pool0", x, "MAX", 3, 2)
    x = net.convolution("conv2", x, 256, 5, pad=2, weight=gaussian(0.05))
    x = _mixed_twice(net, net.relu("relu_conv2", x), 3, (256, 256))
    x = net.pool("pool2", x, "MAX", 3, 2)
    x = net.convolution("conv3", x, 384, 3, pad=1, weight=gaussian(0.01))
    x = _mixed_twice(net, net.relu("relu_conv3", x), 5, (384, 384))
    x = net.pool("pool3", x, "MAX", 3, 2)
    x = net.dropout("drop", x, 0.5)
    x = net.convolution("conv4-1024", x, 1024, 3, pad=1, weight=gaussian(0.05))
    x = net.relu("relu_conv4", x)
    x = net.convolution("cccp7-1024", x, 1024, 1, weight=gaussian(0.05))
    x = net.relu("relu_cccp7", x)
    x = net.convolution("cccp8-1024", x, NUM_CLASSES, 1, weight=gaussian(0.01))
    x = net.relu("relu_cccp8", x)
    return net.pool("pool4", x, "AVE", 6)


def _mixed_twice(net: Net, x: str, number: int, num_outputs: tuple[int, int]) -> str:
    """Two layers of cascaded cross channel pooling, as the paper calls a convolution of 1 x 1."""
    for index, num_output in enumerate(num_outputs, number):
        x = net.convolution(f"cccp{index}", x, num_output, 1, weight=gaussian(0.05))
        x = net.relu(f"relu_cccp{index}", x)
    return x


_TRAIN, _TEST = databases(224, MEAN_IMAGE, 64, _TEST_BATCH_SIZE)

NIN = Model(
    name="nin",
    about=(
        "Network in network for ImageNet: twelve convolutions, eight of them of 1 x 1, 7,595,176 parameters.\n"
        "Lin, Chen, Yan, Network in network, 2013; sizes and rates for ImageNet: Lin's model for Caffe, 2014.\n"
        f"{DATA_SAYS}"
    ),
    image_shape=(3, 224, 224),
    train=_TRAIN,
    test=_TEST,
    body=_body,
    solvers={
        "solver": (
            "22 epochs in batches of 64.",
            solver(
                "nin",
                max_iter=450_000,
                test_batch_size=_TEST_BATCH_SIZE,
                rate=steps(0.01, 200_000),
                rule=momentum(0.0005),
            ),
        )
    },
)
