"""A job on several hosts: they meet, take the settings of host 0, and each runs its own workers."""

import hashlib
import importlib
import inspect
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from samovar.config import RunConfig
from samovar.core.errors import InputError, RankFailed, SamovarError
from samovar.core.files import passing_folder
from samovar.core.plain import to_plain
from samovar.formats.caffe.text import read_text
from samovar.frontends.caffe.solver import CaffeSolver, NetSource, learned_net, load_solver
from samovar.frontends.caffe.solver_checks import FOREIGN_FIELDS
from samovar.launch.identity import own_key_file
from samovar.launch.meeting import HostHello, HostPlace, Met, meet
from samovar.launch.processes import AT_ONCE, SignalEffect
from samovar.launch.script import Hosts
from samovar.launcher.job import Display, run_job, run_without_folder
from samovar.launcher.other_hosts import Host0, OtherHost
from samovar.membership.kept_memory import ServedMemory
from samovar.report.console import Console
from samovar.report.host import versions_of
from samovar.report.records import Notice
from samovar.report.result import RunResult
from samovar.report.run_folder import RunFolder
from samovar.report.wording import counted
from samovar.strategies.base import kind_of
from samovar.strategies.defaults import resolved
from samovar.strategies.traits import AUTO
from samovar.transports.keys import key_path, read_key

# A host has its own of these; all others must be the same everywhere.
_OWN = (
    *("model", "weights", "snapshot", "replay", "out", "key_file", "hosts"),
    *("workers", "threads_per_worker", "cpus", "num_taken_cpus", "oversubscribed", "sweep"),
)
_NO_MATTER = re.compile(
    r"^\s*(source|mean_file|root_folder|net|train_net|test_net|snapshot_prefix|weights): .*\n", re.MULTILINE
)
# Host 0's settled configuration, and its part of the job.
Lead = Callable[[RunConfig], tuple[RunConfig, Callable[[Host0], RunResult | None]]]


def place_of(hosts: Hosts | None, key_file: Path | None) -> HostPlace | None:
    """This host's place in a run on several; None in a run on one."""
    if hosts is None:
        return None
    return HostPlace(hosts.number, hosts.address, hosts.port, hosts.num_hosts, key_file=key_file or own_key_file())


def run_on_hosts(
    config: RunConfig, place: HostPlace, console: Console, lead: Lead, *, has_snapshot: bool = False
) -> RunResult | None:
    """This host's part of a job, as `config` says of its own workers. On host 0, `lead` plans and runs it.

    `has_snapshot` says whether a snapshot was asked for, which host 0 finds.

    Raises InputError if hosts do not fit together, and the job's error on every host.
    """
    require_possible(config)
    if place.leads:
        _say(console, f"host 0 waits for the other hosts at {place.address}, port {place.port}")
    elif place.lacks_key:
        _say(console, f"host {place.number} waits for the key {place.key_file}, which host 0 makes; copy it here")
    hello = _hello(config, place, has_snapshot)
    met = meet(place, hello, config.timeout_s, lambda text: console.show(Notice(level="warning", text=text)))
    own = replace(config, hosts=met.hosts, workers=len(met.hosts.addresses), oversubscribed=met.oversubscribed)
    if met.number == 0:
        return _led(own, met, console, lead)
    return _follow(own, met, console)


def run_anywhere(
    config: RunConfig,
    place: HostPlace | None,
    display: Display,
    console: Console,
    effects: Mapping[int, SignalEffect] = AT_ONCE,
) -> RunResult | None:
    """A job without a run folder, on this host or as this host's part of several; `display` shows it on host 0."""

    def lead(config: RunConfig) -> tuple[RunConfig, Callable[[Host0 | None], RunResult | None]]:
        if config.job == "train":  # defaults of the strategy may follow from the number of workers, here that of all
            config = replace(config, strategy=resolved(config.strategy, config.workers))
        return config, lambda others: run_without_folder(config, display, effects, others)

    return lead(config)[1](None) if place is None else run_on_hosts(config, place, console, lead)


def require_possible(config: RunConfig) -> None:
    """Raise InputError for what several hosts cannot do yet."""
    if config.box is not None:
        raise InputError("--box: the hosts of a run have a center of their own; leave --box or --nodes out")
    if config.hdf5_out is not None and not config.by_caffe:
        raise InputError(f"--out {config.hdf5_out}: HDF5Output layers write on one host; leave --nodes or --out out")


def _hello(config: RunConfig, place: HostPlace, has_snapshot: bool) -> HostHello:
    settings = {f"--{name.replace('_', '-')}": value for name, value in _settings(config).items()}
    for flag, is_given in (("--snapshot", has_snapshot), ("--replay", config.replay is not None)):
        settings[flag] = "yes" if is_given else "no"
    solver = load_solver(config.model) if config.job == "train" or (config.job == "time" and config.is_solver) else None
    settings["--weights"] = counted(len(config.weights or (solver.named_weights if solver else ())), "file")
    return HostHello(
        place.number,
        socket.gethostname(),
        config.workers,
        config.threads_per_worker,
        config.spare_cpus,
        config.oversubscribed,
        own_versions(),
        settings,
        _digest(config, solver),
    )


def own_versions() -> dict[str, str]:
    """The versions that must be the same on all hosts; "none" if a package is not installed."""
    return {"torch": "none"} | versions_of("samovar", "torch")


def _settings(config: RunConfig) -> dict[str, Any]:
    """The settings that must be the same on all hosts, as JSON has them."""
    plain: dict[str, Any] = to_plain({name: value for name, value in config.by_name().items() if name not in _OWN})
    return plain


def _digest(config: RunConfig, solver: CaffeSolver | None) -> str:
    """Of the solver and its nets, without the places of files, and of a strategy of the user's own."""
    nets, texts = [NetSource(config.model, "")], []
    if solver is not None:
        nets = [solver.net, *(test.source for test in solver.test_nets)]
        texts = [str(read_text(solver.path, "SolverParameter", FOREIGN_FIELDS).message)]  # a field on each line
    texts += [str(net.read().message) for net in nets]
    if config.strategy.source is not None:
        texts.append(Path(inspect.getfile(kind_of(config.strategy.name))).read_text(errors="replace"))
    return hashlib.sha256("".join(_NO_MATTER.sub("", text) for text in texts).encode()).hexdigest()


def _led(config: RunConfig, met: Met, console: Console, lead: Lead) -> RunResult | None:
    others = Host0(met, config.timeout_s)
    try:
        with _keeping(config, others) as own:
            settled, run = lead(own)
            if settled.job == "train":  # the others' solvers may name files with other weights
                weights = load_solver(settled.model).starting_weights(settled.weights, settled.snapshot)
                settled = replace(settled, weights=weights)
            _show_hosts(met, console)
            others.begin(settled.to_json(), _files_of(settled))
            result = run(others)
            others.tell_outcome(result)
        return result
    except SamovarError as error:
        others.tell_outcome(error)
        raise
    except BaseException as error:
        others.tell_outcome(RankFailed(f"host 0 was ended ({str(error) or type(error).__name__})"))
        raise
    finally:
        others.close()


@contextmanager
def _keeping(config: RunConfig, others: Host0) -> Iterator[RunConfig]:
    """Keep and serve the center of a strategy that has one, if no library does; the configuration then says where."""
    hosts = config.hosts
    if hosts is None or not config.strategy.needs_center or config.transport != AUTO:
        yield config
        return
    key, address = read_key(key_path(others.met.key)), hosts.addresses[0][0]
    with ServedMemory(config.workers, hosts.job, address, key, config.timeout_s) as kept:
        others.kept = kept
        yield replace(config, hosts=replace(hosts, home=kept.places))


def _show_hosts(met: Met, console: Console) -> None:
    _say(console, f"{len(met.hosts.hosts)} hosts: {', '.join(map(str, met.hosts.hosts))}")
    if not met.is_secret:
        text = "hosts met without a key, so anyone who reaches this port could take part; on a network that is not "
        console.show(Notice(level="warning", text=f"{text}private, give --key-file"))


def _files_of(config: RunConfig) -> dict[str, Path]:
    """The files of host 0 that the others need, by the name that each gets there. InputError if one is missing."""
    if missing := [path for path in config.weights if not path.is_file()]:
        raise InputError(f"--weights {missing[0]}: no such file (looked from {Path.cwd()})")
    files = {f"weights/{number}/{path.name}": path for number, path in enumerate(config.weights)}
    snapshot = config.snapshot
    if snapshot is not None:
        parts = sorted(filter(Path.is_file, snapshot.iterdir())) if snapshot.is_dir() else _pair(snapshot)
        files |= {f"snapshot/{snapshot.name}/{path.name}": path for path in parts}
    if config.replay is not None:
        orders = map(RunFolder(config.replay).order, range(config.workers))
        files |= {f"replay/{path.name}": path for path in orders}
    return files


def _pair(state: Path) -> list[Path]:
    """A solverstate and its caffemodel. Its reader is loaded only here, because it brings HDF5."""
    reader = importlib.import_module("samovar.formats.caffe.solverstate")
    return [state, learned_net(state, reader.read_solverstate(state).learned_net)]


def _follow(config: RunConfig, met: Met, console: Console) -> RunResult | None:
    others = OtherHost(met, config.timeout_s)
    try:
        values, files = others.begun()
        ranks = counted(len(met.host.ranks), "worker")
        _say(
            console,
            f"host {met.number} of {len(met.hosts.hosts)}: {ranks} here; {met.hosts.hosts[0].name} shows the run",
        )
        with _kept_on_failure() as folder:
            given = _fetched(others, files, folder.path)
            settled = _settled(config, values, given, folder.path)
            others.ready()
            return run_job(settled, folder, _Silent(), others=others)
    except BaseException as error:
        others.give_up(error)  # host 0 cannot know it
        raise
    finally:
        others.close()


@contextmanager
def _kept_on_failure() -> Iterator[RunFolder]:
    """A folder for the logs of this host's workers, which stays if the run fails and they have something in them."""
    with passing_folder("hosts") as passing:
        try:
            yield RunFolder(passing.path)
        except BaseException:
            passing.keep_if_told()
            raise


def _say(console: Console, text: str) -> None:
    console.show(Notice(level="info", text=text))


class _Silent:
    """Host 0 shows everything."""

    def show(self, _record: object) -> None:
        """Nothing."""


def _fetched(others: OtherHost, files: dict[str, int], folder: Path) -> dict[str, Path]:
    """Host 0's files, copied into `folder`, by name."""
    fetched = {}
    for number, (name, size) in enumerate(files.items()):
        parts = Path(name).parts
        if Path(name).is_absolute() or ".." in parts:
            raise InputError(f"host 0 sent a file with the name {name!r}; is it of this version?")
        fetched[name] = folder / "given" / name
        fetched[name].parent.mkdir(parents=True, exist_ok=True)
        others.fetch(number, size, fetched[name])
    return fetched


def _settled(config: RunConfig, values: dict[str, Any], given: dict[str, Path], folder: Path) -> RunConfig:
    """Host 0's configuration with what is this host's own."""
    theirs = RunConfig.from_json(values)
    weights = tuple(path for name, path in given.items() if name.startswith("weights/"))
    snapshots = {path.parent for name, path in given.items() if name.startswith("snapshot/")}
    own: dict[str, Any] = {name: getattr(config, name) for name in _OWN}
    snapshot = snapshots.pop() if snapshots else theirs.snapshot
    if snapshot is not None and (state := snapshot / snapshot.name).is_file():
        snapshot = state  # a solverstate, beside its caffemodel
    replay = None if theirs.replay is None else folder / "given" / "replay"
    own |= {"weights": weights, "snapshot": snapshot, "replay": replay, "out": folder, "hosts": theirs.hosts}
    return replace(theirs, **own)
