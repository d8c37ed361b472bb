"""A narrow LeNet on the digits, and solvers for it."""

from pathlib import Path
from string import Template

_RELU = 'layer { name: "relu1" type: "ReLU" bottom: "ip1" top: "ip1" }'
_NET = Template("""name: "narrow"
layer {
  name: "train" type: "Data" top: "data" top: "label" include { phase: TRAIN }
  transform_param { scale: 0.00390625 }
  data_param { source: "$data/digits_train_lmdb" backend: LMDB batch_size: $batch }
}
layer {
  name: "test" type: "Data" top: "data" top: "label" include { phase: TEST }
  transform_param { scale: 0.00390625 }
  data_param { source: "$data/digits_test_lmdb" backend: LMDB batch_size: 60 }
}
layer {
  name: "conv1" type: "Convolution" bottom: "data" top: "conv1" param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 6 kernel_size: 5 weight_filler { type: "xavier" } }
}
layer {
  name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 }
}
layer {
  name: "conv2" type: "Convolution" bottom: "pool1" top: "conv2" param { lr_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 12 kernel_size: 5 weight_filler { type: "xavier" } }
}
layer {
  name: "pool2" type: "Pooling" bottom: "conv2" top: "pool2"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 }
}
layer {
  name: "ip1" type: "InnerProduct" bottom: "pool2" top: "ip1" param { lr_mult: 1 } param { lr_mult: 2 }
  inner_product_param { num_output: $hidden weight_filler { type: "xavier" } }
}
$relu
layer {
  name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2" param { lr_mult: 1 } param { lr_mult: 2 }
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } }
}
layer { name: "accuracy" type: "Accuracy" bottom: "ip2" bottom: "label" top: "accuracy" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
""")

# The rate of the published LeNet.
_SOLVER = """net: "{net}"
test_iter: 6
test_interval: 100
base_lr: 0.01
lr_policy: "inv"
gamma: 0.0001
power: 0.75
momentum: 0.9
weight_decay: 0.0005
random_seed: 1
max_iter: {max_iter}
snapshot_prefix: "narrow"
{more}
"""


def write_net(folder: Path, data: Path, batch: int = 12, hidden: int = 32, smooth: bool = False) -> Path:
    """The net with `batch` samples a step, reading the databases in `data`.

    A `smooth` net has means instead of maxima and no ReLU: nothing in it can tip over by a rounding.
    """
    text = _NET.substitute(data=data, batch=batch, hidden=hidden, relu="" if smooth else _RELU)
    if smooth:
        text = text.replace("MAX", "AVE")
    path = folder / f"narrow_{batch}_{hidden}{'_smooth' if smooth else ''}.prototxt"
    path.write_text(text)
    return path


def write_solver(net: Path, max_iter: int = 50, **more: object) -> Path:
    """A solver beside `net`; `more` are further fields."""
    fields = "\n".join(f"{name}: {value}" for name, value in more.items())
    path = net.with_suffix(f".{max_iter}" + "".join(f".{name}-{value}" for name, value in more.items()))
    path.write_text(_SOLVER.format(net=net, max_iter=max_iter, more=fields))
    return path
