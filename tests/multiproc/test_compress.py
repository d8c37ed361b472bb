"""`samovar train --compress`: the trial's sentence, snapshots with residuals, and what is refused."""

from pathlib import Path

import pytest

from samovar.collectives.encoded import CODECS
from tests.multiproc.command import Command, result_of, run, succeed
from tests.multiproc.nets import write_net, write_solver

NUM_STEPS, SAVED_STEP = 16, 7
PUBLISHED_STEPS, MOST_LOST_ACCURACY = 500, 0.02
LONG_RUN_S = 400.0
TRAIN = ("train", "--workers", 2, "--threads-per-worker", 1, "--bucket", "layer", "--overlap", "backward")


def solver_in(folder: Path, digits: Path, steps: int, **more: object) -> Path:
    return write_solver(write_net(folder, digits), steps, **more)


@pytest.mark.slow
@pytest.mark.parametrize("codec", CODECS)
def test_a_resumed_run_has_the_same_bits(codec: str, digits: Path, tmp_path: Path) -> None:
    solver = solver_in(tmp_path, digits, NUM_STEPS, snapshot=SAVED_STEP)
    flags = (*TRAIN, "--solver", solver, "--compress", codec, "--compress-always")
    succeed(*flags, "--out", "whole", folder=tmp_path)
    saved = tmp_path / "whole" / "snapshots" / f"step_{SAVED_STEP:08}"
    assert {"rank_0.safetensors", "rank_1.safetensors"} <= {path.name for path in saved.iterdir()}
    succeed(*flags, "--snapshot", saved, "--out", "rest", folder=tmp_path)
    hashes = [result_of(tmp_path / name)["weights_sha256"] for name in ("whole", "rest")]
    assert hashes[0] == hashes[1]


@pytest.mark.slow
def test_the_first_steps_decide_and_a_resumed_run_keeps_to_it(digits: Path, tmp_path: Path) -> None:
    """After the decision the bits are those of the run that made it, whatever the clock says now."""
    solver = solver_in(tmp_path, digits, NUM_STEPS, snapshot=13)
    flags = (*TRAIN, "--solver", solver, "--compress", "bf16")
    ended = succeed(*flags, "--out", "whole", folder=tmp_path)
    assert "gradients as bf16 where it helps" in ended.output
    assert ended.output.count("--compress bf16 stays on: ") + ended.output.count("--compress bf16 is switched off") == 1
    result = result_of(tmp_path / "whole")
    assert (result["compress"], result["is_compressed"]) == ("bf16", "stays on" in ended.output)
    saved = tmp_path / "whole" / "snapshots" / "step_00000013"
    ended = succeed(*flags, "--snapshot", saved, "--out", "rest", folder=tmp_path)
    assert "a step takes" not in ended.output
    hashes = [result_of(tmp_path / name)["weights_sha256"] for name in ("whole", "rest")]
    assert hashes[0] == hashes[1]
    plain = succeed(*TRAIN, "--solver", solver, "--snapshot", saved, "--out", "plain", folder=tmp_path)
    assert "but lose the unsent gradients" in plain.output + plain.errors


@pytest.mark.slow
def test_compressed_differences_go_on_with_the_same_bits_and_carry_their_center_over(
    digits: Path, tmp_path: Path
) -> None:
    solver = solver_in(tmp_path, digits, NUM_STEPS, snapshot=SAVED_STEP)
    shared = ("train", "--threads-per-worker", 1, "--strategy", "sync-easgd", "--sync-period", 2, "--solver", solver)
    flags = (*shared, "--compress", "int8")
    ended = succeed(*flags, "--workers", 2, "--out", "whole", folder=tmp_path)
    assert "differences as int8" in ended.output
    result = result_of(tmp_path / "whole")
    assert (result["compress"], result["is_compressed"]) == ("int8", True)
    saved = tmp_path / "whole" / "snapshots" / f"step_{SAVED_STEP:08}"
    succeed(*flags, "--workers", 2, "--snapshot", saved, "--out", "rest", folder=tmp_path)
    assert result_of(tmp_path / "rest")["weights_sha256"] == result["weights_sha256"]
    more = succeed(*flags, "--workers", 3, "--snapshot", saved, "--out", "more", folder=tmp_path)
    assert "start from its weights, and from zero momentum" in more.output + more.errors
    plain = succeed(*shared, "--workers", 2, "--snapshot", saved, "--out", "plain", folder=tmp_path)
    assert "start from its weights, and from zero momentum" in plain.output + plain.errors


def test_refusals_cost_nothing(digits: Path, tmp_path: Path) -> None:
    solver = solver_in(tmp_path, digits, NUM_STEPS)
    for flags, message in (
        (("--compress", "bf16", "--exact", 2), "--exact 2: gives the same bits, and compression changes them"),
        (("--compress", "bf16", "--strategy", "local-sgd"), "--compress is not a setting of --strategy local-sgd"),
        (
            ("--compress", "1-bit", "--strategy", "sync-easgd"),
            "--compress: got '1-bit'; choose one of: none, bf16, int8, int4",
        ),
    ):
        ended = run("train", "--solver", solver, "--workers", 2, *flags, folder=tmp_path)
        assert ended.return_code == 2
        assert message in ended.errors


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    """A solver of as many steps as its accuracy is published for."""
    return solver_in(tmp_path_factory.mktemp("published"), digits, PUBLISHED_STEPS)


def accuracy_of(solver: Path, out: Path, *flags: object) -> float:
    with Command(*TRAIN, "--solver", solver, *flags, "--out", out, folder=out.parent) as command:
        ended = command.wait(LONG_RUN_S)
    assert ended.return_code == 0, ended.errors
    accuracy: float = result_of(out)["test_accuracy"]
    return accuracy


@pytest.fixture(scope="module")
def plain(published: Path) -> float:
    """The accuracy without compression."""
    return accuracy_of(published, published.parent / "plain")


@pytest.mark.slow
@pytest.mark.timeout(2.5 * LONG_RUN_S)
@pytest.mark.parametrize("codec", CODECS)
def test_accuracy_is_that_without_compression(codec: str, published: Path, plain: float, tmp_path: Path) -> None:
    found = accuracy_of(published, tmp_path / "compressed", "--compress", codec, "--compress-always")
    print(f"{codec}: {found:.4f}, without compression {plain:.4f}")
    assert found > plain - MOST_LOST_ACCURACY
