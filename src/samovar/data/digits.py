"""The handwritten digits that come with scikit-learn, as Caffe's LMDBs: real data without a download.

1,797 images of 8x8 pixels with values 0 to 16 (E. Alpaydin and C. Kaynak, UCI, 1998). Each is enlarged three
times, bilinear, and centred in 28x28 like MNIST's, so that a net made for MNIST takes it. The kind of enlargement
matters little. After 500 steps Caffe's LeNet reached 97.9 % with bilinear, 97.9 % with cubic and 98.2 % with nearest.
These are means of three seeds; one test image is 0.3 %.
"""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from samovar.core.modules import require_optional
from samovar.data.databases import WrittenDatabase, write_images
from samovar.data.order import permutation

NUM_TEST = 360
_NUM_CLASSES = 10
_MARGIN = 2  # 28 = 2 + 3 * 8 + 2
_SPLIT_SEED, _ORDER_SEED = 1797, 1798


def write_digits(out: Path) -> list[WrittenDatabase]:
    """Write out/digits_train_lmdb (1,437 records) and out/digits_test_lmdb (360).

    Each digit has its share of both. Records are in a fixed random order, because training reads them as stored.
    They are the same on every machine.

    Raises: InputError if scikit-learn is missing or a folder holds something else.
    """
    small_N88, labels_N = load()
    images = enlarge(small_N88)[:, None]
    train, test = split(labels_N)
    return [
        write_images(out / "digits_train_lmdb", images[train], labels_N[train]),
        write_images(out / "digits_test_lmdb", images[test], labels_N[test]),
    ]


def enlarge(small_N88: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Images (N, 8, 8) of values 0 to 16 as uint8 (N, 28, 28) of values 0 to 255.

    Pixel i of the large image is at (i - 1) / 3 of the small one, so that weights are ninths. All is computed in
    whole numbers, and rounded once.
    """
    weights = np.zeros((24, 8), np.int64)
    for row in range(24):
        below, third = divmod(row - 1, 3)
        weights[row, max(below, 0)] += 3 - third
        weights[row, min(below + 1, 7)] += third
    ninths = np.einsum("ij,njk,lk->nil", weights, small_N88, weights)
    whole = 9 * 16
    pixels = (255 * ninths + whole // 2) // whole
    return np.pad(pixels, ((0, 0), (_MARGIN, _MARGIN), (_MARGIN, _MARGIN))).astype(np.uint8)


def split(labels_N: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Image numbers of the training and the test set. The test set has 360, each class by its share."""
    places = permutation(len(labels_N), _SPLIT_SEED, 0)
    by_class = [places[labels_N[places] == digit] for digit in range(_NUM_CLASSES)]
    counts = _test_counts(np.array([len(members) for members in by_class]))
    test = np.concatenate([members[:count] for members, count in zip(by_class, counts, strict=True)])
    train = np.concatenate([members[count:] for members, count in zip(by_class, counts, strict=True)])
    return train[permutation(len(train), _ORDER_SEED, 0)], test[permutation(len(test), _ORDER_SEED, 0)]


def _test_counts(sizes: npt.NDArray[np.int64]) -> list[int]:
    """Whole numbers that sum to NUM_TEST, each close to its class's share (largest remainders)."""
    counts, remainders = np.divmod(sizes * NUM_TEST, sizes.sum())
    favoured = np.argsort(-remainders, kind="stable")[: NUM_TEST - counts.sum()]
    counts[favoured] += 1
    return [int(count) for count in counts]


def load() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """All images (N, 8, 8) of values 0 to 16, and their labels. Raises InputError if scikit-learn is missing."""
    require_optional("sklearn")
    bundled: Any = importlib.import_module("sklearn.datasets").load_digits()
    return bundled.images.astype(np.int64), bundled.target.astype(np.int64)
