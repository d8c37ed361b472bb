"""The digits as databases, made once a session."""

from pathlib import Path

import pytest

from tests.multiproc.command import succeed


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with digits_train_lmdb and digits_test_lmdb."""
    folder = tmp_path_factory.getbasetemp() / "digits"
    if not folder.exists():
        folder.mkdir()
        succeed("data", "digits", "--out", "data", folder=folder)
    return folder / "data"
