"""AlexNet and CaffeNet: five convolutions, three inner products, 60,965,224 parameters.

They differ in what comes first, response normalization or pooling, and in what biases start at.
"""

from generator.imagenet import DATA_SAYS, MEAN_IMAGE, NUM_CLASSES, databases, momentum, solver, steps
from generator.model import Model
from generator.net import Net, constant, gaussian

_NORM = {"local_size": 5, "alpha": 0.0001, "beta": 0.75}
_TEST_BATCH_SIZE = 50
_PAPER = "Krizhevsky, Sutskever, Hinton, ImageNet classification with deep convolutional neural networks, 2012"


def _alexnet_body(net: Net, data: str) -> str:
    return _body(net, data, pools_first=False, bias=0.1)


def _caffenet_body(net: Net, data: str) -> str:
    return _body(net, data, pools_first=True, bias=1)


def _body(net: Net, data: str, *, pools_first: bool, bias: float) -> str:
    x = net.convolution("conv1", data, 96, 11, stride=4, weight=gaussian(0.01))
    x = _normalized_and_pooled(net, net.relu("relu1", x), 1, pools_first)
    x = net.convolution("conv2", x, 256, 5, pad=2, group=2, weight=gaussian(0.01), bias=constant(bias))
    x = _normalized_and_pooled(net, net.relu("relu2", x), 2, pools_first)
    x = net.convolution("conv3", x, 384, 3, pad=1, weight=gaussian(0.01))
    x = net.relu("relu3", x)
    x = net.convolution("conv4", x, 384, 3, pad=1, group=2, weight=gaussian(0.01), bias=constant(bias))
    x = net.relu("relu4", x)
    x = net.convolution("conv5", x, 256, 3, pad=1, group=2, weight=gaussian(0.01), bias=constant(bias))
    x = net.relu("relu5", x)
    x = net.pool("pool5", x, "MAX", 3, 2)
    for number in (6, 7):
        x = net.inner_product(f"fc{number}", x, 4096, weight=gaussian(0.005), bias=constant(bias))
        x = net.relu(f"relu{number}", x)
        x = net.dropout(f"drop{number}", x, 0.5)
    return net.inner_product("fc8", x, NUM_CLASSES, weight=gaussian(0.01))


def _normalized_and_pooled(net: Net, x: str, number: int, pools_first: bool) -> str:
    if pools_first:
        return net.response_norm(f"norm{number}", net.pool(f"pool{number}", x, "MAX", 3, 2), _NORM)
    return net.pool(f"pool{number}", net.response_norm(f"norm{number}", x, _NORM), "MAX", 3, 2)


_TRAIN, _TEST = databases(227, MEAN_IMAGE, 256, _TEST_BATCH_SIZE)
_SOLVER_SAYS = "90 epochs in batches of 256. The paper divides the rate by 10 when validation stops improving."

ALEXNET = Model(
    name="alexnet",
    about=(
        "AlexNet: five convolutions, three inner products, 60,965,224 parameters.\n"
        f"{_PAPER}.\n"
        "Biases of 1 there are 0.1 here, with which Caffe's replication trains; crops are 227 x 227, so that 55\n"
        f"positions of the first kernel fit.\n{DATA_SAYS}"
    ),
    image_shape=(3, 227, 227),
    train=_TRAIN,
    test=_TEST,
    body=_alexnet_body,
    solvers={
        "solver": (
            _SOLVER_SAYS,
            solver(
                "alexnet",
                max_iter=450_000,
                test_batch_size=_TEST_BATCH_SIZE,
                rate=steps(0.01, 100_000),
                rule=momentum(0.0005),
            ),
        )
    },
)

CAFFENET = Model(
    name="caffenet",
    about=(
        "CaffeNet: AlexNet with pooling before response normalization, 60,965,224 parameters.\n"
        f"{_PAPER};\n"
        "Jia et al., Caffe: convolutional architecture for fast feature embedding, 2014.\n"
        f"{DATA_SAYS}"
    ),
    image_shape=(3, 227, 227),
    train=_TRAIN,
    test=_TEST,
    body=_caffenet_body,
    solvers={
        "solver": (
            _SOLVER_SAYS,
            solver(
                "caffenet",
                max_iter=450_000,
                test_batch_size=_TEST_BATCH_SIZE,
                rate=steps(0.01, 100_000),
                rule=momentum(0.0005),
            ),
        )
    },
)
