"""LeNet for MNIST, in Caffe's form: rectified where the paper of 1998 has sigmoids, maxima where it has means."""

from generator.model import Images, Model
from generator.net import XAVIER, Net

_SCALE = {"scale": 1 / 256}  # bytes to numbers below 1


def _body(net: Net, data: str) -> str:
    x = net.convolution("conv1", data, 20, 5, weight=XAVIER)
    x = net.pool("pool1", x, "MAX", 2, 2)
    x = net.convolution("conv2", x, 50, 5, weight=XAVIER)
    x = net.pool("pool2", x, "MAX", 2, 2)
    x = net.inner_product("ip1", x, 500, weight=XAVIER)
    x = net.relu("relu1", x)
    return net.inner_product("ip2", x, 10, weight=XAVIER)


LENET = Model(
    name="lenet",
    about=(
        "LeNet for MNIST: two convolutions with pooling, two inner products, 431,080 parameters.\n"
        "LeCun, Bottou, Bengio, Haffner, Gradient-based learning applied to document recognition, 1998,\n"
        "in the form known from Caffe.\n"
        "`samovar data mnist --source FOLDER --out data` writes what it reads."
    ),
    image_shape=(1, 28, 28),
    train=Images("data/mnist_train_lmdb", 64, _SCALE),
    test=Images("data/mnist_test_lmdb", 100, _SCALE),
    body=_body,
    multipliers=({"lr_mult": 1}, {"lr_mult": 2}),  # biases learn twice as fast
    top_ks=(1,),
    solvers={
        "solver": (
            "About 11 epochs of 60,000 digits.",
            [
                ("net", "train_val.prototxt"),
                ("max_iter", 10_000),
                ("display", 100),
                ("test_iter", 100, "x 100 = the 10,000 test digits"),
                ("test_interval", 500),
                ("base_lr", 0.01),
                ("lr_policy", "inv", "base_lr (1 + gamma iteration)^(-power)"),
                ("gamma", 0.0001),
                ("power", 0.75),
                ("momentum", 0.9),
                ("weight_decay", 0.0005),
                ("snapshot", 5000),
                ("snapshot_prefix", "lenet"),
                ("random_seed", 1),
            ],
        )
    },
)
