"""Which steps a run makes, and what it saves at its end."""

from pathlib import Path

import pytest

from samovar.config import RunConfig
from samovar.frontends.caffe.solver import load_solver
from samovar.training.loop import make_schedule


@pytest.mark.parametrize(
    ("first_step", "snapshot", "after_train", "saves"),
    [(8, 4, True, False), (8, 3, True, True), (8, 0, True, True), (4, 4, True, True), (8, 3, False, False)],
)
def test_the_caffe_command_saves_its_end_as_caffe_does(
    tmp_path: Path, first_step: int, snapshot: int, after_train: bool, saves: bool
) -> None:
    """Caffe saves after training unless its interval divides the last step, which a run of steps has saved then."""
    (tmp_path / "net.prototxt").touch()
    path = tmp_path / "solver.prototxt"
    fields = f"snapshot: {snapshot} snapshot_after_train: {str(after_train).lower()}"
    path.write_text(f'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 8 {fields}')
    config = RunConfig("train", path, by_caffe=True)
    assert make_schedule(config, load_solver(path), first_step).save_at_end == saves
