"""What a run can save is known before it trains."""

import pytest

from samovar.core.errors import InputError
from samovar.training.snapshots import require_room


def test_what_a_binary_file_cannot_hold_is_refused_before_training() -> None:
    with pytest.raises(InputError, match="snapshot_format: HDF5 into the solver"):
        require_room("BINARYPROTO", 300_000_000, 2)
    require_room("BINARYPROTO", 300_000_000, 1)
    require_room("HDF5", 300_000_000, 2)
