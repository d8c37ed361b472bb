"""The data that BVLC Caffe read from HDF5 files and wrote into one, and the mean image that it computed."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from samovar.data.datasets import LmdbDataset
from samovar.data.reader import BatchReader
from samovar.formats.caffe.blob import encode_mean, mean_image
from samovar.formats.caffe.caffemodel import read_caffemodel
from samovar.frontends.caffe.definition import load_net
from samovar.frontends.caffe.layers.ends import HDF5Output
from samovar.frontends.caffe.net import build_net

pytestmark = pytest.mark.golden


def test_rows_of_two_hdf5_files_through_a_net_into_a_third(golden_folder: Path, tmp_path: Path) -> None:
    """A batch of 13 rows of two files with nine: it wraps around; one dataset holds doubles."""
    folder = golden_folder / "hdf5"
    definition = load_net(folder / "net.prototxt")
    with BatchReader(definition.data_layers("TEST"), training=False) as reader:
        assert reader.top_shapes == {"data": (13, 2, 3), "label": (13,), "weight": (13, 4)}
        assert len(reader) == 9
        net = build_net(definition, "TEST", reader.top_shapes, seed=0)
        batch = reader.read(0, 13)
    weights = read_caffemodel(folder / "weights.caffemodel")
    for info in net.parameter_infos:
        info.parameter.data.numpy()[...] = weights[info.layer][info.index]
    [output] = [layer for layer in net.layers if isinstance(layer, HDF5Output)]
    output.keeps = True
    net(batch)
    path = output.write(tmp_path)

    assert path == tmp_path / "out.h5"
    with h5py.File(path) as ours, h5py.File(folder / "out.h5") as caffes:
        assert set(ours) == set(caffes)
        for name in caffes:
            assert ours[name].shape == caffes[name].shape
            assert ours[name].dtype == caffes[name].dtype
            wanted = caffes[name][()]
            np.testing.assert_allclose(ours[name][()], wanted, rtol=0, atol=1e-5 * abs(wanted).max())


def test_the_mean_image_byte_for_byte(golden_folder: Path) -> None:
    with LmdbDataset(golden_folder / "lmdb/cifar_train") as dataset:
        images, _ = dataset.read(np.arange(len(dataset)))
    assert images.dtype == np.uint8
    assert encode_mean(mean_image(images.astype(np.uint8))) == (golden_folder / "cifar/mean.binaryproto").read_bytes()
