"""`samovar train --workers auto`: real runs of every setting, one of which is kept."""

from pathlib import Path

import pytest

from samovar.config import RunConfig
from samovar.core.host import num_available_cpus
from samovar.launcher.sweep import sweep_settings
from tests.multiproc.command import Command, Ended, result_of, run, succeed
from tests.multiproc.nets import write_net, write_solver

TIMEOUT_S = 200.0  # several runs in one


def train(folder: Path, solver: Path, *flags: object) -> Ended:
    arguments = ("train", "--solver", solver, "--workers", "auto", "--out", "out", *flags)
    with Command(*arguments, folder=folder) as command:
        ended = command.wait(TIMEOUT_S)
    assert ended.return_code == 0, ended.errors
    return ended


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_one_of_the_settings_is_kept(tmp_path: Path, digits: Path) -> None:
    solver = write_solver(write_net(tmp_path, digits), 4)
    settings = sweep_settings([num_available_cpus()], threads_per_worker=1, most_workers=2)  # the bits of --exact 2
    ended = train(tmp_path, solver, "--exact", 2)
    result, config = result_of(tmp_path / "out"), RunConfig.load(tmp_path / "out/config.json")
    figures = result["sweep"]
    assert tuple((figure["workers"], figure["threads_per_worker"]) for figure in figures) == settings
    assert all(figure["samples_per_second"] > 0 for figure in figures)
    best = max(figures, key=lambda figure: figure["samples_per_second"])
    kept = (best["workers"], best["threads_per_worker"])
    assert (result["workers"], result["threads_per_worker"]) == kept
    assert (config.workers, config.threads_per_worker) == kept
    assert not config.oversubscribed
    assert [len(cpus) for cpus in config.cpus] == [kept[1]] * kept[0]
    assert (result["effective_batch"], result["steps"]) == (12, 4), "the batch of one, and no step of the sweep counts"
    log = (tmp_path / "out/samovar.log").read_text()
    for text in (ended.output, log):
        assert text.count(" samples/s\n") >= len(settings)
        assert f"--workers auto: {kept[0]} worker" in text


@pytest.mark.slow
def test_what_continues_a_run_takes_its_setting(tmp_path: Path, digits: Path) -> None:
    solver = write_solver(write_net(tmp_path, digits), 4)
    succeed("train", "--solver", solver, "--threads-per-worker", 1, "--out", "out", folder=tmp_path)
    ended = train(tmp_path, solver, "--snapshot", "latest", "--iterations", 6)
    assert "--workers auto: 1 worker x 1 thread, as the run that saved" in ended.output
    result = result_of(tmp_path / "out")
    assert (result["workers"], result["threads_per_worker"], result["steps"]) == (1, 1, 6)
    assert "settings" not in ended.output, "nothing was tried"


def test_what_is_wrong_in_itself_is_refused_by_the_first_setting(tmp_path: Path, digits: Path) -> None:
    solver = write_solver(write_net(tmp_path, digits), 4)
    write_net(tmp_path, tmp_path / "nowhere")
    flags = ("--workers", "auto", "--batch-mode", "global", "--out", "out")
    ended = run("train", "--solver", solver, *flags, folder=tmp_path)
    assert ended.return_code == 2
    assert "nowhere" in ended.error
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_more_workers_than_samples_are_left_out(tmp_path: Path, digits: Path) -> None:
    """With a batch of one sample nobody can share it."""
    solver = write_solver(write_net(tmp_path, digits, batch=1), 2)
    train(tmp_path, solver, "--batch-mode", "global")
    result = result_of(tmp_path / "out")
    assert result["workers"] == 1
    assert [figure["samples_per_second"] is None for figure in result["sweep"]] == [
        workers > 1 for workers, _ in sweep_settings([num_available_cpus()])
    ]
