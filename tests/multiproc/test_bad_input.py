"""Wrong input: one sentence with file and line or flag, exit code 2, and nothing left behind."""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.multiproc.command import Ended, run, succeed
from tests.multiproc.nets import write_net, write_solver

BAD_INPUT = 2
Arguments = list[object]
Bad = tuple[Arguments, str]  # a command line, and the pattern of what is said about it


@dataclass(frozen=True)
class Place:
    """The ground of a case: a scratch folder, its net and solver, the databases, and a caffemodel."""

    folder: Path
    net: Path
    solver: Path
    data: Path
    model: Path

    def run(self, *arguments: object) -> Ended:
        return run(*arguments, folder=self.folder)

    def change_net(self, old: str, new: str) -> int:
        """Replace a piece of the net's text; returns the line on which it stands."""
        return _change(self.net, old, new)

    def change_solver(self, old: str, new: str) -> int:
        return _change(self.solver, old, new)


def _change(path: Path, old: str, new: str) -> int:
    text = path.read_text()
    assert text.count(old) == 1, (old, text)
    path.write_text(text.replace(old, new))
    return text[: text.index(old)].count("\n") + 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> Path:
    """A caffemodel of the narrow net."""
    folder = tmp_path_factory.mktemp("model")
    solver = write_solver(write_net(folder, digits), 3)
    succeed("train", "--solver", solver, "--out", "out", folder=folder)
    (path,) = folder.glob("out/snapshots/*/*.caffemodel")
    return path


@pytest.fixture
def place(tmp_path: Path, digits: Path, model: Path) -> Place:
    folder = tmp_path / "files"
    folder.mkdir()
    net = write_net(folder, digits)
    return Place(folder, net, write_solver(net, 5), digits, model)


def assert_refused(place: Place, arguments: Arguments, sentence: str) -> None:
    """`samovar` says `sentence` (a pattern), and that alone; the working folder stays as it was."""
    before = sorted(place.folder.rglob("*"))
    ended = place.run(*arguments)
    print(ended.errors)
    after = [path for path in place.folder.rglob("*") if not re.match(r"\.(output|errors)-", path.name)]
    assert ended.return_code == BAD_INPUT, ended.errors
    assert "Traceback" not in ended.errors + ended.output
    assert re.search(sentence, ended.error), f"{sentence!r} is not in {ended.error!r}"
    assert sorted(path for path in after if path != place.folder / "runs") == before


def train(place: Place, *flags: object) -> Arguments:
    return ["train", "--solver", place.solver, "--threads-per-worker", 1, *flags]


Case = Callable[[Place], Bad]
CASES: list[object] = []
_LOSS = 'layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }'


def case(prepare: Case) -> Case:
    """A test of every run."""
    CASES.append(pytest.param(prepare, id=prepare.__name__))
    return prepare


def rare_case(prepare: Case) -> Case:
    """A test of the long runs."""
    CASES.append(pytest.param(prepare, id=prepare.__name__, marks=pytest.mark.slow))
    return prepare


@case
def no_such_solver(place: Place) -> Bad:
    return ["train", "--solver", "nowhere.prototxt"], r"^nowhere\.prototxt: no such"


@case
def solver_is_a_folder(place: Place) -> Bad:
    return ["train", "--solver", place.folder], rf"^{place.folder}: is not a regular file"


@case
def solver_is_a_caffemodel(place: Place) -> Bad:
    return ["train", "--solver", place.model], rf"^{place.model}:\d+: .*not UTF-8"


@case
def net_is_a_caffemodel(place: Place) -> Bad:
    place.change_solver(str(place.net), str(place.model))
    return train(place), rf"^{place.model}:\d+: .*not UTF-8"


@case
def solver_is_a_net(place: Place) -> Bad:
    return ["train", "--solver", place.net], rf"^{place.net}: is a net \(it has layers\), not a solver"


@case
def no_such_net(place: Place) -> Bad:
    line = place.change_solver(str(place.net), "nowhere.prototxt")
    return train(place), rf"^{place.solver}:{line}: net: 'nowhere.prototxt' does not exist"


@case
def nothing_to_train_on(place: Place) -> Bad:
    place.change_net(_LOSS, "")
    return train(place), rf"^{place.net}: has no loss in phase TRAIN"


@case
def nothing_that_learns(place: Place) -> Bad:
    text = place.net.read_text().replace("lr_mult: 1", "lr_mult: 0").replace("lr_mult: 2", "lr_mult: 0")
    place.net.write_text(text)
    return train(place), rf"^{place.net}: has no parameter to learn in phase TRAIN"


@case
def negative_max_iter(place: Place) -> Bad:
    line = place.change_solver("max_iter: 5", "max_iter: -5")
    return train(place), rf"^{place.solver}:{line}: max_iter: -5; it must be at least 0"


@case
def negative_iterations(place: Place) -> Bad:
    return train(place, "--iterations", -5), r"^--iterations: got -5; give at least 0"


@case
def no_workers(place: Place) -> Bad:
    return train(place, "--workers", 0), r"^--workers: got 0; give at least 1"


@case
def workers_that_are_no_number(place: Place) -> Bad:
    return train(place, "--workers", "many"), r"^--workers: got 'many'; give a number or 'auto'"


@case
def iterations_that_are_no_number(place: Place) -> Bad:
    said = r"^Invalid value for '--iterations': .* integer.*; see `samovar train --help`$"
    return train(place, "--iterations", "many"), said


@case
def unknown_flag(place: Place) -> Bad:
    return train(place, "--wrokers", 2), r"^No such option: --wrokers .*--workers.*; see `samovar train --help`$"


@case
def a_setting_that_a_script_gives(_place: Place) -> Bad:
    said = (
        r"^--sync-period is a flag of `samovar train`; in a script, give sync_period_steps=\.\.\. to samovar.replicate;"
    )
    return ["run", "--sync-period", "4", "script.py"], said + r" see `samovar run --help`$"


@case
def no_solver(_place: Place) -> Bad:
    return ["train"], r"^Missing option '--solver'; see `samovar train --help`$"


@case
def no_threads(place: Place) -> Bad:
    return train(place, "--threads-per-worker", 0), r"^--threads-per-worker: got 0; give at least 1"


@case
def negative_threads(place: Place) -> Bad:
    return train(place, "--threads-per-worker", -1), r"^--threads-per-worker: got '-1'; give a number or 'auto'"


@case
def unknown_strategy(place: Place) -> Bad:
    return train(place, "--strategy", "gossip"), r"^--strategy: got 'gossip'; choose one of: .*sync"


@case
def unknown_collective(place: Place) -> Bad:
    return train(place, "--collective", "star"), r"^--collective: got 'star'; choose one of: .*ring"


@case
def unknown_bucket(place: Place) -> Bad:
    return train(place, "--bucket", "-4"), r"^--bucket: got '-4'; give 'auto', 'model', 'layer' or a number of bytes"


@case
def unknown_batch_mode(place: Place) -> Bad:
    return train(place, "--batch-mode", "each"), r"^--batch-mode: got 'each'; choose one of: per-worker, global"


@case
def weights_and_snapshot(place: Place) -> Bad:
    flags = ("--weights", place.model, "--snapshot", place.model.parent)
    return train(place, *flags), r"^--weights and --snapshot exclude each other"


@case
def latest_without_a_run(place: Place) -> Bad:
    return train(place, "--snapshot", "latest"), r"^--snapshot latest: no run of net 'narrow' with a snapshot"


@case
def latest_of_an_empty_folder(place: Place) -> Bad:
    (place.folder / "empty").mkdir()
    return train(place, "--snapshot", "latest", "--out", "empty"), r"^empty/snapshots holds no snapshot"


@case
def no_such_snapshot(place: Place) -> Bad:
    return train(place, "--snapshot", "nowhere"), r"^--snapshot nowhere: does not exist"


@case
def out_is_a_file(place: Place) -> Bad:
    return train(place, "--out", place.solver), rf"^cannot use {place.solver} as run folder: .*--out"


@case
def out_of_a_run_that_has_ended(place: Place) -> Bad:
    (place.folder / "ended").mkdir()
    (place.folder / "ended" / "result.json").write_text("{}")
    return train(place, "--out", "ended"), r"^--out ended: has a finished run .*; give another folder, or continue"


@case
def out_below_a_file(place: Place) -> Bad:
    out = place.solver / "run"
    return train(place, "--out", out), rf"^cannot use {out} as run folder: Not a directory; .*--out"


@case
def unknown_layer(place: Place) -> Bad:
    line = place.change_net('type: "ReLU"', 'type: "RelU6"')
    return train(place), rf"^{place.net}:{line}: .*RelU6"


@rare_case
def kernel_larger_than_input(place: Place) -> Bad:
    line = place.change_net("num_output: 12 kernel_size: 5", "num_output: 12 kernel_size: 13")
    return train(place), rf"^{place.net}:({line}|{line - 1}): .*conv2.*13"


@rare_case
def bottom_that_no_layer_makes(place: Place) -> Bad:
    line = place.change_net('bottom: "pool2"', 'bottom: "pool3"')
    return train(place), rf"^{place.net}:{line}: .*pool3.*did you mean 'pool2'"


@rare_case
def missing_database(place: Place) -> Bad:
    line = place.change_net(f"{place.data}/digits_train_lmdb", "nowhere_lmdb")
    return train(place), rf"^{place.net}:{line}: .*source: 'nowhere_lmdb' does not exist"


@case
def truncated_database(place: Place) -> Bad:
    copy = place.folder / "cut_lmdb"
    shutil.copytree(place.data / "digits_train_lmdb", copy)
    size = (copy / "data.mdb").stat().st_size
    with (copy / "data.mdb").open("r+b") as file:
        file.truncate(size // 2)
    place.change_net(f"{place.data}/digits_train_lmdb", str(copy))
    return train(place), rf"^{copy}: .* ({size // 2:,}|{size // 2}) bytes .*cut off"


@rare_case
def database_that_is_a_file(place: Place) -> Bad:
    place.change_net(f"{place.data}/digits_train_lmdb", str(place.solver))
    return train(place), rf"^{place.solver}"


@rare_case
def truncated_caffemodel(place: Place) -> Bad:
    content = place.model.read_bytes()
    cut = place.folder / "cut.caffemodel"
    cut.write_bytes(content[: len(content) // 2])
    return train(place, "--weights", cut), rf"^{cut}: .*cut short"


@case
def caffemodel_of_another_net(place: Place) -> Bad:
    """The same layer names, other shapes."""
    line = place.change_net("num_output: 32", "num_output: 33")
    assert line > 1
    return train(place, "--weights", place.model), rf"^{place.model}: layer 'ip1', array 0 has shape .*32.*33"


@rare_case
def caffemodel_of_a_stranger(place: Place) -> Bad:
    text = place.net.read_text()
    for name in ("conv1", "conv2", "ip1", "ip2"):
        text = text.replace(f'name: "{name}"', f'name: "other_{name}"')
    place.net.write_text(text)
    return train(place, "--weights", place.model), rf"^{place.model}: belongs to another net"


@rare_case
def solverstate_of_another_net(place: Place) -> Bad:
    place.change_net("num_output: 32", "num_output: 33")
    (state,) = place.model.parent.glob("*.solverstate")
    return train(place, "--snapshot", state), rf"^{state.parent}/.*32.*33|^{state.parent}/.*ip1"


@rare_case
def snapshot_of_another_net(place: Place) -> Bad:
    place.change_net("num_output: 32", "num_output: 33")
    return train(
        place, "--snapshot", place.model.parent
    ), rf"^--snapshot {place.model.parent}: weights of .*shape .*32.*33"


@rare_case
def snapshot_beyond_the_end(place: Place) -> Bad:
    snapshot = place.model.parent
    return train(place, "--snapshot", snapshot, "--iterations", 2), rf"^--snapshot {snapshot}: it has 3 steps, .* 2;"


@rare_case
def damaged_snapshot(place: Place) -> Bad:
    folder = place.folder / "damaged"
    shutil.copytree(place.model.parent, folder)
    (folder / "manifest.json").write_text("{}")
    return train(place, "--snapshot", folder), rf"^{folder}/manifest.json .*"


@case
def more_workers_than_samples(place: Place) -> Bad:
    place.change_net("batch_size: 12", "batch_size: 1")
    return train(
        place, "--workers", 2, "--batch-mode", "global"
    ), r"^--workers 2 with --batch-mode global: .*batches of 1"


@rare_case
def net_of_a_test_is_a_caffemodel(place: Place) -> Bad:
    return ["test", "--model", place.model, "--weights", place.model], rf"^{place.model}:\d+: .*not UTF-8"


@case
def no_such_weights_for_a_test(place: Place) -> Bad:
    return ["test", "--model", place.net, "--weights", "nowhere"], r"^nowhere: no such caffemodel file"


@rare_case
def truncated_caffemodel_for_a_test(place: Place) -> Bad:
    cut = truncated_caffemodel(place)[1].removeprefix("^").split(":")[0]
    return ["test", "--model", place.net, "--weights", cut], rf"^{cut}: .*cut short"


@case
def no_batches_for_a_test(place: Place) -> Bad:
    return ["test", "--model", place.net, "--weights", place.model, "--iterations", 0], r"^--iterations: got 0"


@pytest.mark.parametrize("prepare", CASES)
def test_refused(place: Place, prepare: Case) -> None:
    assert_refused(place, *prepare(place))


def test_what_every_rank_meets_is_said_once(place: Place) -> None:
    arguments, sentence = missing_database(place)
    assert_refused(place, [*arguments, "--workers", 2], sentence)
