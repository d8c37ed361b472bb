"""All data layers of a net read side by side, or none at all."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from samovar.core.errors import InputError
from samovar.core.group import Group
from samovar.data.config import DataConfig, TransformConfig
from samovar.data.order import SAMPLE_NUMBERS, batch_portions
from samovar.data.reader import BatchReader, WithoutData
from samovar.data.stream import BatchStream, evaluation_batches
from tests.unit.data.test_stream import take

MakeDatabase = Callable[..., Path]


@pytest.fixture
def pair(make_database: MakeDatabase) -> tuple[DataConfig, DataConfig]:
    """Images and their masks, 23 of each: the same pixels in both."""
    transform = TransformConfig(crop_size=3, mirror=True)
    images, masks = make_database(23), make_database(23, name="masks_lmdb")
    return (
        DataConfig(images, 7, ("data", "label"), transform, training=True),
        DataConfig(masks, 7, ("mask",), replace(transform, scale=0.5), training=True),
    )


def test_layers_keep_in_step_in_order_crops_and_flips(pair: tuple[DataConfig, DataConfig]) -> None:
    with BatchReader(pair, True, seed=4, shuffled=True) as reader:
        assert reader.top_shapes == {"data": (7, 1, 3, 3), "label": (7,), "mask": (7, 1, 3, 3)}
        assert (len(reader), reader.sources) == (23, (pair[0].source, pair[1].source))
        batch = reader.read(20, 9)
    assert torch.equal(batch["data"] * 0.5, batch["mask"])
    assert batch[SAMPLE_NUMBERS].tolist() == list(range(20, 29))


def test_shorter_sources_start_again_sooner(pair: tuple[DataConfig, DataConfig], make_database: MakeDatabase) -> None:
    short = DataConfig(make_database(5, name="short"), 7, ("s", "number"), TransformConfig(), training=True)
    with BatchReader((pair[0], short), True) as reader:
        batch = reader.read(4, 7)
    assert batch["number"].tolist() == [4, 0, 1, 2, 3, 4, 0]
    assert batch["label"].tolist() == [4, 5, 6, 7, 8, 9, 0]


def test_one_batch_size_for_all(pair: tuple[DataConfig, DataConfig]) -> None:
    with pytest.raises(InputError, match=r"batch_size 7 \(.*images_lmdb\) and 8 \(.*masks_lmdb\); give them one"):
        BatchReader((pair[0], replace(pair[1], batch_size=8)), True)


def test_a_batch_beyond_caffes_limit(pair: tuple[DataConfig, DataConfig]) -> None:
    with pytest.raises(InputError, match=r"top 'data' would have shape 4000000000 x 1 x 3 x 3, more than 2147483647"):
        BatchReader([replace(pair[0], batch_size=4_000_000_000)], True)


def test_a_second_source_that_fails_closes_the_first(pair: tuple[DataConfig, DataConfig]) -> None:
    """The leak check would see its descriptor."""
    with pytest.raises(InputError, match="no such folder"):
        BatchReader((pair[0], replace(pair[1], source=pair[1].source / "none")), True)


def test_a_net_without_data_layers() -> None:
    without = WithoutData(6, {"in": (6, 2), "weights": (3,)})
    reader = BatchReader((), True, without=without)
    assert (len(reader), reader.batch_size, reader.sources) == (0, 6, ())
    with BatchStream(reader, batch_portions(Group(1, 2), 6)) as stream:
        first = take(stream, 1)[0]
    assert first.tensors[SAMPLE_NUMBERS].tolist() == [3, 4, 5]
    assert (first.tensors["in"].shape, first.tensors["weights"].shape) == ((3, 2), (3,))
    assert not first.tensors["in"].any()
    batches = list(evaluation_batches(reader, Group(1, 2), 4))
    assert [(k, tensors[SAMPLE_NUMBERS].tolist()[0]) for k, tensors in batches] == [(1, 6), (3, 18)]
