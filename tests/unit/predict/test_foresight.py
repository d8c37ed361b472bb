"""What is kept of runs, and how a run is compared with its prediction."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from samovar.cli.time import _keep
from samovar.core.machine import NOMINAL
from samovar.launch.wishes import state_folder
from samovar.predict.cluster import Cluster, NetworkSpec, WorkerSpec
from samovar.predict.foresight import close_loop, foreseen_of
from samovar.predict.kept import Kept, Ran, Subject
from samovar.report.profile import LayerProfile, Profile, load_profile
from samovar.report.records import LayerTime, Timed
from samovar.report.result import Foreseen
from samovar.strategies.config import StrategyConfig
from samovar.strategies.defaults import resolved

SUBJECT = Subject("two layers", 3_000_000, 1)
LAYERS = tuple(LayerProfile(name, "", size, 0, 0, 1e-3, 2e-3) for name, size in (("a", 1_000_000), ("b", 2_000_000)))
PROFILE = Profile(SUBJECT.net, 8, LAYERS, "as given", 1e-3, busy=0.02)


def ran(workers: int = 2, **changes: object) -> Ran:
    made = Ran(SUBJECT, resolved(StrategyConfig("sync"), workers), workers, 2, 8.0, 8e-3, 100, busy=0.02)
    return replace(made, **changes)  # type: ignore[arg-type]


def foreseen(measured_s: float, cluster: str = "here: one node, in step") -> Foreseen:
    return Foreseen(
        cluster=cluster, net="n", strategy="sync", workers=2, predicted_s=1.0, measured_s=measured_s, profile="p"
    )


def test_several_workers_are_predicted_from_a_run_of_one(tmp_path: Path) -> None:
    Kept(tmp_path).keep_machine(NOMINAL)
    assert close_loop(tmp_path, ran()) is None  # nothing is known of the net
    assert close_loop(tmp_path, ran(1, step_s=7e-3)) is None
    found = close_loop(tmp_path, ran())
    assert found is not None
    assert found.predicted_s > 7e-3  # the exchange takes time
    assert found.profile == "a run with one worker"
    assert found.cluster == "nodes like this one (nominal): one node, in step"
    bar = Kept(tmp_path).error_bar(found.cluster)
    assert bar is not None
    assert (bar.num_runs, bar.worst) == (1, pytest.approx(abs(found.predicted_s / 8e-3 - 1)))


def test_frozen_parameters_of_a_run_of_one_are_not_exchanged(tmp_path: Path) -> None:
    Kept(tmp_path).keep_machine(NOMINAL)
    predicted = []
    for num_unlearned in (0, 2_900_000):
        close_loop(tmp_path, ran(1, step_s=7e-3, num_unlearned=num_unlearned))
        found = close_loop(tmp_path, ran())
        assert found is not None
        predicted.append(found.predicted_s)
    assert predicted[1] - 7e-3 < (predicted[0] - 7e-3) / 10


def test_one_worker_whose_batch_is_not_known_predicts_nothing(tmp_path: Path) -> None:
    """A loop may get its batches from a shard only when it has several workers."""
    Kept(tmp_path).keep_machine(NOMINAL)
    close_loop(tmp_path, ran(1, batch_size=0.0))
    assert close_loop(tmp_path, ran()) is None
    close_loop(tmp_path, ran(1))
    found = close_loop(tmp_path, ran(batch_size=0.0))
    assert found is not None
    assert found.predicted_s < 0.1


def test_layers_that_were_timed_go_before_a_whole_run(tmp_path: Path) -> None:
    Kept(tmp_path).keep_machine(NOMINAL)
    Kept(tmp_path).keep_profile(SUBJECT, PROFILE)
    close_loop(tmp_path, ran(1, step_s=1.0))
    found = close_loop(tmp_path, ran())
    assert found is not None
    assert (found.profile, found.predicted_s < 0.1) == ("as given", True)


def test_times_are_kept_for_runs_which_count_all_parameters(tmp_path: Path) -> None:
    counts = {"norm": (0, 9), "ip": (20, 0)}
    layers = tuple(
        LayerTime(name=name, type="", forward_ms=1, backward_ms=1, num_parameters=learned, num_unlearned=others)
        for name, (learned, others) in counts.items()
    )
    about = {"net_name": "n", "phase": "TRAIN", "batch_size": 8, "threads": 1, "iterations": 1, "initial_loss": None}
    timed = Timed(**about, layers=layers, forward_ms=2, backward_ms=2, iteration_ms=(4.0,))  # type: ignore[arg-type]
    _keep(timed, 0.0, Kept(tmp_path), None)
    found = Kept(tmp_path).profile(Subject("n", 29, 1))
    assert found is not None
    assert found.num_parameters == 20


@pytest.mark.parametrize(
    "changes",
    [
        {"num_steps": 5},  # too few
        {"step_s": 0.0},
        {"workers": 100},
        {"busy": 0.2},
        {"busy": None},
        {"workers": 4, "ranks_per_host": 4},  # on two cores
        {"subject": replace(SUBJECT, threads=2)},
        {"subject": replace(SUBJECT, precision="bf16")},
    ],
)
def test_no_prediction_is_better_than_one_from_nothing(tmp_path: Path, changes: dict[str, object]) -> None:
    Kept(tmp_path).keep_machine(NOMINAL)
    Kept(tmp_path).keep_profile(SUBJECT, PROFILE)
    assert close_loop(tmp_path, ran(**changes)) is None  # type: ignore[arg-type]
    assert close_loop(None, ran()) is None


def test_a_machine_that_was_not_measured_gives_no_prediction_unless_a_record_is_given(tmp_path: Path) -> None:
    Kept(tmp_path).keep_profile(SUBJECT, PROFILE)
    assert close_loop(tmp_path, ran()) is None
    assert close_loop(tmp_path, ran(calibration=replace(NOMINAL, machine="another"))) is not None


def test_times_of_a_busy_machine_predict_nothing_and_replace_none_of_a_quiet_one(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.keep_machine(NOMINAL)
    close_loop(tmp_path, ran(1, step_s=9.0, busy=0.9))
    kept.keep_profile(SUBJECT, replace(PROFILE, busy=0.9))
    assert kept.profile(SUBJECT) is None
    close_loop(tmp_path, ran(1, step_s=7e-3))
    close_loop(tmp_path, ran(1, step_s=9.0, busy=0.9))
    found = close_loop(tmp_path, ran())
    assert found is not None
    assert 7e-3 < found.predicted_s < 1e-1


def test_an_older_file_that_does_not_say_how_busy_the_machine_was_counts_as_missing(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.keep_profile(SUBJECT, PROFILE)
    (path,) = (tmp_path / "profiles").iterdir()
    values = json.loads(path.read_text())
    assert kept.profile(SUBJECT) == PROFILE
    del values["busy"]
    path.write_text(json.dumps(values))
    assert load_profile(path).busy is None
    assert kept.profile(SUBJECT) is None


def test_the_cut_and_the_plan_of_the_run_are_simulated() -> None:
    overlaps = resolved(StrategyConfig("sync", overlap="backward", automatic_buckets=True), 2)
    whole, cut = (
        foreseen_of(ran(strategy=overlaps, bucket_sizes_bytes=sizes), PROFILE, NOMINAL)
        for sizes in ((), (8_000_000, 4_000_000))
    )
    assert cut.predicted_s < whole.predicted_s  # the first bucket travels behind the backward pass
    direct, server = (foreseen_of(ran(collective=name), PROFILE, NOMINAL).predicted_s for name in ("direct", "server"))
    assert direct < server


def test_what_the_run_chose_itself_is_simulated() -> None:
    """`samovar train` divides updates where it can, and its trial of a codec may end without it."""
    profile = replace(PROFILE, update_s=4e-3)
    parts, every = (foreseen_of(ran(owner=owner, collective="direct"), profile, NOMINAL) for owner in ("parts", "all"))
    assert every.predicted_s - parts.predicted_s > 1e-3
    tried = ran(strategy=resolved(StrategyConfig("sync", compress="bf16"), 2), ranks_per_host=1)
    with_codec, without = (foreseen_of(replace(tried, is_compressed=on), PROFILE, NOMINAL) for on in (True, False))
    assert without.predicted_s == foreseen_of(ran(ranks_per_host=1), PROFILE, NOMINAL).predicted_s
    assert with_codec.predicted_s < without.predicted_s


def test_errors_count_for_their_own_kind_of_cluster(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "new" / "folder")
    for measured_s in (1.0, 0.8, 2.0):
        kept.keep_run(foreseen(measured_s))
    kept.keep_run(foreseen(10.0, "elsewhere: one node, in step"))
    bar = kept.error_bar("here: one node, in step")
    assert str(bar) == "25%, at most 50%, in 3 runs on this kind of cluster"
    assert kept.error_bar("a third: one node, in step") is None


def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samovar.predict.kept._MOST_PROFILES", 2)
    monkeypatch.setattr("samovar.predict.kept._MOST_RUNS", 2)
    kept = Kept(tmp_path)
    for number in range(1, 5):
        kept.keep_profile(replace(SUBJECT, threads=number), PROFILE)
        kept.keep_run(foreseen(float(number)))
    assert len(list((tmp_path / "profiles").iterdir())) == 2
    bar = kept.error_bar("here: one node, in step")
    assert bar is not None
    assert (bar.num_runs, bar.worst) == (2, 0.75)


@pytest.mark.parametrize("content", ["", "[]", "null", '{"runs": 3}', '{"runs": [{"net": 1}]}', "[" * 100_000])
def test_damaged_files_count_as_missing_and_are_replaced(tmp_path: Path, content: str) -> None:
    kept = Kept(tmp_path)
    for name in ("runs.json", "machine.json"):
        (tmp_path / name).write_text(content)
    assert kept.machine() is None
    assert kept.error_bar("here: one node, in step") is None
    kept.keep_run(foreseen(1.0))
    assert kept.error_bar("here: one node, in step") is not None


@pytest.mark.parametrize("measured_s", [0.0, -1.0, math.inf, math.nan])
def test_a_run_without_an_error_counts_as_missing(tmp_path: Path, measured_s: float) -> None:
    kept = Kept(tmp_path)
    for one in (foreseen(measured_s), foreseen(0.8)):
        kept.keep_run(one)
    assert str(kept.error_bar("here: one node, in step")) == "25%, at most 25%, in 1 runs on this kind of cluster"


def test_figures_of_a_machine_without_end_count_as_missing(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    kept.keep_machine(NOMINAL)
    path = tmp_path / "machine.json"
    path.write_text(re.sub(r'"cores": \d+', '"cores": 1' + 400 * "0", path.read_text()))
    assert kept.machine() is None


def test_a_folder_that_cannot_be_written_stops_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (None, tmp_path / "file"):
        kept = Kept(folder)
        kept.keep_machine(NOMINAL)
        kept.keep_profile(SUBJECT, PROFILE)
        kept.keep_run(foreseen(1.0))
        assert (kept.machine(), kept.profile(SUBJECT), kept.error_bar("here")) == (None, None, None)


def test_the_kind_of_a_cluster_tells_nodes_and_centers_apart() -> None:
    cluster = Cluster("six machines", worker=WorkerSpec(), network=NetworkSpec(1e9))
    assert cluster.kind_of(1, has_center=False) == "six machines: one node, in step"
    assert cluster.kind_of(2, has_center=True) == "six machines: several nodes, at a center"


def test_what_is_kept_lies_in_the_users_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder() is not None
    assert str(state_folder()).startswith(f"{tmp_path}/samovar/")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # which the specification says to ignore
    monkeypatch.setenv("HOME", "/home/someone")
    assert str(state_folder()).startswith("/home/someone/.local/state/samovar/")
    monkeypatch.delenv("HOME")
    assert state_folder() is None
