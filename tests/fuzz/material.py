"""Sound inputs of every kind, small: what the mutations start from."""

import gzip
import lzma
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from samovar.formats.caffe.blob import encode_blob
from samovar.formats.caffe.caffemodel import LayerRecord, encode_caffemodel, encode_caffemodel_hdf5
from samovar.formats.caffe.datum import encode_datum
from samovar.formats.caffe.schema import message_class, packed_message_class
from samovar.formats.caffe.solverstate import SolverState, encode_solverstate, encode_solverstate_hdf5
from samovar.formats.lmdb_file import write_lmdb

NET = """name: "small"
layer { name: "in" type: "Input" top: "data" top: "label"
  input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } shape { dim: 2 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 4 kernel_size: 3 stride: 1 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "norm" type: "LRN" bottom: "conv" top: "norm" lrn_param { local_size: 3 alpha: 0.1 beta: 0.75 } }
layer { name: "pool" type: "Pooling" bottom: "norm" top: "pool" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "split" type: "Slice" bottom: "pool" top: "a" top: "b" slice_param { axis: 1 slice_point: 1 } }
layer { name: "join" type: "Concat" bottom: "a" bottom: "b" top: "join" concat_param { axis: 1 } }
layer { name: "drop" type: "Dropout" bottom: "join" top: "join" dropout_param { dropout_ratio: 0.5 }
  include { phase: TRAIN } }
layer { name: "shape" type: "Reshape" bottom: "join" top: "flat" reshape_param { shape { dim: 0 dim: -1 } } }
layer { name: "ip" type: "InnerProduct" bottom: "flat" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "gaussian" std: 0.01 } bias_filler { value: 0.1 } } }
layer { name: "top" type: "Accuracy" bottom: "ip" bottom: "label" top: "top" include { phase: TEST } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" loss_weight: 1 }
"""

OLD_NET = """name: "old"
input: "data" input_dim: 2 input_dim: 3 input_dim: 8 input_dim: 8
layers { name: "conv" type: CONVOLUTION bottom: "data" top: "conv" blobs_lr: 1 blobs_lr: 2 weight_decay: 1
  convolution_param { num_output: 4 kernel_size: 3 } }
layers { name: "relu" type: RELU bottom: "conv" top: "conv" }
layers { name: "ip" type: INNER_PRODUCT bottom: "conv" top: "ip" inner_product_param { num_output: 5 } }
"""
OLDEST_NET = """name: "oldest"
input: "data" input_dim: 2 input_dim: 3 input_dim: 8 input_dim: 8
layers { layer { name: "pad" type: "padding" pad: 1 } bottom: "data" top: "pad" }
layers { layer { name: "conv" type: "conv" num_output: 4 kernelsize: 3 weight_filler { type: "xavier" } blobs_lr: 1 }
  bottom: "pad" top: "conv" }
layers { layer { name: "ip" type: "innerproduct" num_output: 5 } bottom: "conv" top: "ip" }
"""

DATA_NET = """name: "images"
layer { name: "data" type: "Data" top: "data" top: "label"
  transform_param { scale: 0.00390625 crop_size: 6 mirror: true }
  data_param { source: "SOURCE" backend: LMDB batch_size: 4 } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip" inner_product_param { num_output: 5 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""

SOLVER = """net: "net.prototxt"
test_iter: 1
test_interval: 5
base_lr: 0.01
lr_policy: "multistep"
gamma: 0.1
stepvalue: 2
stepvalue: 4
momentum: 0.9
weight_decay: 0.0005
regularization_type: "L2"
display: 1
max_iter: 3
iter_size: 1
clip_gradients: 10
snapshot: 2
snapshot_prefix: "small"
solver_mode: CPU
type: "Nesterov"
random_seed: 1
"""

IMAGE_SHAPE = (3, 8, 8)
NUM_RECORDS = 12


@cache
def weights() -> tuple[LayerRecord, ...]:
    """Those of NET."""
    rng = np.random.default_rng(5)

    def blobs(*shapes: tuple[int, ...]) -> list[np.ndarray]:
        return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]

    return (
        LayerRecord("in", "Input", (), ("data", "label"), ()),
        LayerRecord("conv", "Convolution", ("data",), ("conv",), blobs((4, 3, 3, 3), (4,))),
        LayerRecord("ip", "InnerProduct", ("flat",), ("ip",), blobs((5, 64), (5,))),
    )


def caffemodel() -> bytes:
    return encode_caffemodel("small", weights())


def caffemodel_hdf5() -> bytes:
    return encode_caffemodel_hdf5(weights())


def old_caffemodel() -> bytes:
    """With layers of the second generation, and shapes of four numbers."""
    net = message_class("NetParameter")(name="small")
    for record in weights()[1:]:
        layer = net.layers.add(name=record.name, type=4, bottom=record.bottoms, top=record.tops)
        for blob in record.blobs:
            shape = (1, 1, 1, 1, *blob.shape)[-4:]
            layer.blobs.add(
                num=shape[0], channels=shape[1], height=shape[2], width=shape[3], data=blob.ravel().tolist()
            )
    return bytes(net.SerializeToString())


def _state(model: str) -> SolverState:
    return SolverState(3, model, [blob for record in weights() for blob in record.blobs], 1)


def solverstate(model: str = "small_iter_3.caffemodel") -> bytes:
    return encode_solverstate(_state(model))


def solverstate_hdf5(model: str = "small_iter_3.caffemodel") -> bytes:
    return encode_solverstate_hdf5(_state(model))


def mean() -> bytes:
    blob = packed_message_class("BlobProto")()
    encode_blob(blob, np.arange(192, dtype=np.float32).reshape(IMAGE_SHAPE))
    return bytes(blob.SerializeToString())


def image(index: int = 0) -> np.ndarray:
    return np.random.default_rng(index).integers(0, 256, IMAGE_SHAPE, np.uint8)


def datum(index: int = 0) -> bytes:
    return encode_datum(image(index), index % 5)


def idx() -> bytes:
    return bytes([0, 0, 8, 3]) + np.array([4, 5, 6], ">u4").tobytes() + bytes(range(120))


def packed_idx() -> dict[str, bytes]:
    return {"gz": gzip.compress(idx(), mtime=0), "xz": lzma.compress(idx())}


def write_database(folder: Path, records: Sequence[bytes] | None = None) -> Path:
    """An LMDB of `records`, else of NUM_RECORDS sound ones."""
    values = [datum(index) for index in range(NUM_RECORDS)] if records is None else records
    write_lmdb(folder, ((b"%08d" % index, value) for index, value in enumerate(values)))
    return folder
