"""`samovar init`: the files that it writes, and those that it leaves alone."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from samovar.cli import init as command
from samovar.cli.commands import app_of
from samovar.core.errors import InputError
from samovar.data.databases import write_images
from samovar.frontends.caffe.definition import load_net


def init(*words: object) -> list[str]:
    """What it prints; raises what it refuses with."""
    result = CliRunner().invoke(app_of(["init"]), ["init", *map(str, words)])
    if result.exception is not None:
        raise result.exception
    return result.output.splitlines()


def database(folder: Path, shape: tuple[int, ...], labels: list[int]) -> Path:
    images = np.zeros((len(labels), *shape), np.uint8)
    return write_images(folder, images, np.array(labels)).folder


def test_the_digits_by_default_and_the_commands_to_go_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "a b/first"
    assert init("caffe", folder) == [
        f"wrote {folder}/net.prototxt",
        f"wrote {folder}/solver.prototxt",
        "next:",
        f"  samovar data digits --out '{folder}/data'",
        f"  samovar train --solver '{folder}/solver.prototxt' --workers 2",
    ]
    net = (folder / "net.prototxt").read_text()
    assert 'source: "data/digits_train_lmdb" backend: LMDB batch_size: 64' in net
    assert "$" not in net + (folder / "solver.prototxt").read_text()


def test_where_a_net_of_the_same_name_would_be_trained_the_command_enters_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text('name: "other"')
    assert init("caffe", "a b")[-1] == "  cd 'a b' && samovar train --solver solver.prototxt --workers 2"


def test_a_net_for_images_of_one_s_own(tmp_path: Path) -> None:
    train = database(tmp_path / "train", (3, 64, 48), [0, 1, 2] * 40)
    test = database(tmp_path / "test", (3, 64, 48), [2, 1] * 26)
    assert init("caffe", tmp_path, "--data", train, "--test-data", test)[-1].startswith("  samovar train --solver ")
    net, solver = ((tmp_path / name).read_text() for name in ("net.prototxt", "solver.prototxt"))
    assert "for 3 x 64 x 48 images of 3 classes" in net
    assert f'source: "{train}"' in net
    assert f'source: "{test}" backend: LMDB batch_size: 52' in net
    assert "num_output: 3 " in net
    assert "test_iter: 1 " in solver


def test_classes_that_were_counted_in_a_part_are_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = database(tmp_path / "train", (1, 8, 8), [0] * 7 + [5] + [1] * 8)
    assert "counted in" not in " ".join(init("caffe", tmp_path / "all", "--data", train))
    monkeypatch.setattr(command, "_MOST_LOOKED_AT", 4)
    note = f"{train}: 2 classes, counted in 4 of 16 records; if it has more, raise num_output"
    assert init("caffe", tmp_path / "part", "--data", train)[2:4] == [note, "next:"]


def test_the_net_finds_images_in_a_folder_with_odd_signs(tmp_path: Path) -> None:
    train = database(tmp_path / 'a "b" \\ack', (1, 8, 8), [0, 1] * 40)
    init("caffe", tmp_path, "--data", train)
    assert load_net(tmp_path / "net.prototxt").layers[0].message.data_param.source == str(train)


@pytest.mark.parametrize("kind", ["caffe", "torch"])
def test_what_is_there_stays(kind: str, tmp_path: Path) -> None:
    init(kind, tmp_path)
    for path in tmp_path.iterdir():
        path.write_text("mine")
    (tmp_path / "net.prototxt").unlink(missing_ok=True)
    with pytest.raises(InputError, match="exists already, and is not overwritten; give another folder"):
        init(kind, tmp_path)
    assert {path.read_text() for path in tmp_path.iterdir()} == {"mine"}
    assert not (tmp_path / "net.prototxt").exists()


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    small, large = database(tmp_path / "small", (1, 9, 9), [0]), database(tmp_path / "large", (3, 9, 9), [0])
    for words, sentence in (
        (("caffe", tmp_path, "--test-data", small), "--test-data: give --data with the training images too"),
        (("torch", tmp_path, "--data", small), "--data: the PyTorch example makes its own data; leave it out"),
        (
            ("caffe", tmp_path, "--data", small, "--test-data", large),
            "large: its images are 3 x 9 x 9, those to train on 1 x 9 x 9",
        ),
        (("caffe", tmp_path, "--data", tmp_path / "none"), "none"),
        (("caffe", "/proc/none"), "/proc/none: cannot be written"),
    ):
        with pytest.raises(InputError) as error:
            init(*words)
        assert sentence in str(error.value)
    assert not list(tmp_path.glob("*.prototxt"))


def test_records_of_ones_own_are_trained_in_random_order(tmp_path: Path) -> None:
    """They may lie class by class."""
    train = database(tmp_path / "train", (1, 8, 8), [0] * 40 + [1] * 40)
    assert init("caffe", tmp_path / "net", "--data", train)[-1].endswith("--workers 2 --shuffle")


def test_all_classes_and_nearly_all_test_images_count(tmp_path: Path) -> None:
    train = database(tmp_path / "a", (1, 8, 8), [0, 1] * 9)
    test = database(tmp_path / "b", (1, 8, 8), [0, 1, 2] * 39 + [0] * 2)
    init("caffe", tmp_path, "--data", train, "--test-data", test)
    net, solver = ((tmp_path / f"{name}.prototxt").read_text() for name in ("net", "solver"))
    assert "num_output: 3 " in net
    assert "batch_size: 59 }" in net
    assert "test_iter: 2 " in solver
    with pytest.raises(InputError, match="has the label -1"):
        init("caffe", tmp_path / "c", "--data", database(tmp_path / "d", (1, 8, 8), [-1, 0]))
