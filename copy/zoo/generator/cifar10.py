"""Krizhevsky's two nets for CIFAR-10, in Caffe's form: `quick` trains in minutes, `full` with normalization."""

from generator.model import Images, Model, SolverLine
from generator.net import Net, gaussian
from generator.prototxt import Word

_MEAN = {"mean_file": "data/cifar10/mean.binaryproto"}
_TRAIN = Images("data/cifar10/cifar10_train_lmdb", 100, _MEAN)
_TEST = Images("data/cifar10/cifar10_test_lmdb", 100, _MEAN)
_NORM = {"local_size": 3, "alpha": 0.00005, "beta": 0.75, "norm_region": Word("WITHIN_CHANNEL")}
_TWICE = ({"lr_mult": 1}, {"lr_mult": 2})  # biases learn twice as fast
_ONCE = ({"lr_mult": 1}, {"lr_mult": 1})
_DECAYING = ({"lr_mult": 1, "decay_mult": 250}, {"lr_mult": 1, "decay_mult": 0})
_HELD_OUT = "x 100 = the 10,000 held-out images"


def _quick_body(net: Net, data: str) -> str:
    x = net.convolution("conv1", data, 32, 5, pad=2, weight=gaussian(0.0001))
    x = net.pool("pool1", x, "MAX", 3, 2)
    x = net.relu("relu1", x)
    x = net.convolution("conv2", x, 32, 5, pad=2, weight=gaussian(0.01))
    x = net.relu("relu2", x)
    x = net.pool("pool2", x, "AVE", 3, 2)
    x = net.convolution("conv3", x, 64, 5, pad=2, weight=gaussian(0.01))
    x = net.relu("relu3", x)
    x = net.pool("pool3", x, "AVE", 3, 2)
    x = net.inner_product("ip1", x, 64, weight=gaussian(0.1))
    return net.inner_product("ip2", x, 10, weight=gaussian(0.1))


def _full_body(net: Net, data: str) -> str:
    x = net.convolution("conv1", data, 32, 5, pad=2, weight=gaussian(0.0001))
    x = net.pool("pool1", x, "MAX", 3, 2)
    x = net.relu("relu1", x)
    x = net.response_norm("norm1", x, _NORM)
    x = net.convolution("conv2", x, 32, 5, pad=2, weight=gaussian(0.01))
    x = net.relu("relu2", x)
    x = net.pool("pool2", x, "AVE", 3, 2)
    x = net.response_norm("norm2", x, _NORM)
    x = net.convolution("conv3", x, 64, 5, pad=2, weight=gaussian(0.01), multipliers=_ONCE)
    x = net.relu("relu3", x)
    x = net.pool("pool3", x, "AVE", 3, 2)
    if net.learns:
        net.comment("The weights' decay is 250 x weight_decay = 1.")
    return net.inner_product("ip1", x, 10, weight=gaussian(0.01), multipliers=_DECAYING)


def _solver(name: str, rate: float, max_iter: int, snapshot: int) -> list[SolverLine]:
    return [
        ("net", "train_val.prototxt"),
        ("max_iter", max_iter),
        ("display", 100),
        ("test_iter", 100, _HELD_OUT),
        ("test_interval", 500),
        ("base_lr", rate),
        ("lr_policy", "fixed"),
        ("momentum", 0.9),
        ("weight_decay", 0.004),
        ("snapshot", snapshot),
        ("snapshot_prefix", name),
        ("random_seed", 1),
    ]


QUICK = Model(
    name="cifar10_quick",
    about=(
        "The quick net for CIFAR-10: three convolutions with pooling, two inner products, 145,578 parameters.\n"
        "Architecture and rates: A. Krizhevsky, cuda-convnet, 2012, in the form known from Caffe.\n"
        "`samovar data cifar10 --source FOLDER --out data/cifar10` writes what it reads, with the mean image."
    ),
    image_shape=(3, 32, 32),
    train=_TRAIN,
    test=_TEST,
    body=_quick_body,
    multipliers=_TWICE,
    top_ks=(1,),
    solvers={
        "solver": (
            "The first 4,000 iterations: 8 epochs of 50,000 images, 10 of 40,000. Go on with solver_lr1.prototxt.",
            _solver("cifar10_quick", 0.001, 4000, 4000),
        ),
        "solver_lr1": (
            "1,000 further iterations at a tenth of the rate: start from the solver state of iteration 4,000.",
            _solver("cifar10_quick", 0.0001, 5000, 5000),
        ),
    },
)

FULL = Model(
    name="cifar10_full",
    about=(
        "The full net for CIFAR-10: three convolutions with pooling and response normalization, 89,578 parameters.\n"
        "Architecture and rates: A. Krizhevsky, cuda-convnet's layers-18pct, 2012, in the form known from Caffe.\n"
        "`samovar data cifar10 --source FOLDER --out data/cifar10` writes what it reads, with the mean image."
    ),
    image_shape=(3, 32, 32),
    train=_TRAIN,
    test=_TEST,
    body=_full_body,
    multipliers=_TWICE,
    top_ks=(1,),
    solvers={
        "solver": (
            "The first 60,000 iterations: 120 epochs of 50,000 images. Go on with solver_lr1.prototxt.",
            _solver("cifar10_full", 0.001, 60_000, 10_000),
        ),
        "solver_lr1": (
            "5,000 further iterations at a tenth of the rate: start from the solver state of iteration 60,000.",
            _solver("cifar10_full", 0.0001, 65_000, 5000),
        ),
        "solver_lr2": (
            "The last 5,000 iterations at a hundredth of the rate: start from the solver state of iteration 65,000.",
            _solver("cifar10_full", 0.00001, 70_000, 5000),
        ),
    },
)
