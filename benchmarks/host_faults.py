"""Faults of two hosts at random moments: `samovar train` on two namespaces, with one worker each. Needs root.

Each fault has its own trials, and each trial a victim of the two hosts. A trial is right if

- every launcher that must end does so in time, with the right exit code, and its error names the right host;
- a fault that a run survives leaves it training, and the replicas are equal at its end;
- no rank process is left on any host.

`faults-hosts` prints the trials that are not right, and the longest time until all had ended.
"""

import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
from figures import Figure
from hosts import require_namespaces
from namespaces import INTERFACE, NamespaceHost, two_hosts
from ranks import FOLDER

sys.path.insert(0, str(FOLDER.parent))
from samovar.data.digits import write_digits
from tests.multihost.train_run import HostsRun, started
from tests.multiproc.command import Command, Ended, last_step, result_of
from tests.multiproc.leftovers import living
from tests.multiproc.nets import write_net, write_solver
from tests.multiproc.watched import WatchedBox

TRIALS = 20
TIMEOUT_S = 6.0  # of a wait for another host
LONGEST_S = 60.0  # until all have ended, on a busy machine
RANDOM_S, STEPS_AFTER = 1.5, 20
GOES_ON, BAD_INPUT, FAILED = 0, 2, 3
AT_CENTER = ("--strategy", "async-easgd", "--sync-period", 2)
_WRONG_HARDWARE = ("lladdr", "02:00:00:00:00:99", "dev", INTERFACE, "nud", "permanent")
_SLOW = ("tbf", "rate", "1mbit", "burst", "96kb", "latency", "400ms")
_OTHER_TORCH = "Metadata-Version: 2.1\nName: torch\nVersion: 9.9.9\n"


@dataclass
class Trial:
    """A run under way, in which `victim` is the host that the fault befalls; `wrong` says what did not go right."""

    folder: Path
    solver: Path
    hosts: Sequence[NamespaceHost]
    run: HostsRun
    victim: int
    wrong: list[str]

    @property
    def other(self) -> int:
        return 1 - self.victim

    def lose_victim(self) -> None:
        """As if its power went: the kernel says nothing more to the other host."""
        command = self.run.commands[self.victim]
        ranks = command.ranks().values()
        self.hosts[self.victim].set_interface("down")
        for process in (command.process, *ranks):
            process.kill()

    def must_end(self, number: int, code: int, names: str) -> None:
        """The launcher of host `number` ends with `code`, and its error has `names`."""
        self.check(self.run.commands[number], f"host {number}", code, names)

    def must_name(self, *numbers: int) -> None:
        """The launchers of these hosts end, and each names the other host, or a rank of it."""
        for number in numbers:
            other = 1 - number
            self.must_end(number, FAILED, rf"host {other}, \S+#{other} \(rank|rank {other} on \S+#{other}\b")

    def check(self, command: Command, who: str, code: int, names: str) -> None:
        try:
            ended = command.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            self.wrong.append(f"{who} hangs")
            return
        if ended.return_code != code or not re.search(names, ended.errors):
            self.wrong.append(f"{who}: {_shown(ended)}")

    def must_go_on(self, *numbers: int, names: str = "") -> None:
        """It makes more steps, and ends as it should on these hosts, or on both."""
        self.run.commands[0].wait_for_step(self.run.out, last_step(self.run.out) + STEPS_AFTER)
        self.run.commands[0].send(signal.SIGINT)
        for number in numbers or range(len(self.hosts)):
            self.must_end(number, GOES_ON, names if number == 0 else "")
        if not self.wrong and result_of(self.run.out)["replicas_equal"] is False:
            self.wrong.append("the replicas differ")

    def must_tell(self, pattern: str) -> None:
        """Host 0's console says it, while the run continues."""
        log = self.run.out / "samovar.log"
        self.run.commands[0].until(lambda: re.search(pattern, log.read_text()), pattern, LONGEST_S)


def host_lost(trial: Trial) -> None:
    trial.lose_victim()
    trial.must_name(trial.other)


def host_lost_at_center(trial: Trial) -> None:
    """Host 0 has the center, and continues without host 1; without host 0 the run ends."""
    trial.lose_victim()
    if trial.victim == 0:
        trial.must_name(1)
        return
    trial.must_tell(r"host 1, \S+#1 \(rank 1\) is lost: .*; the others continue without it")
    trial.must_go_on(0, names="is lost")


def link_cut_at_center(trial: Trial) -> None:
    """Host 1 cannot reach the center and ends; host 0 continues without it."""
    trial.hosts[trial.victim].set_interface("down")
    trial.must_name(1)
    trial.must_tell(r"host 1, \S+#1 \(rank 1\) is lost")
    trial.must_go_on(0)


def worker_killed_at_center(trial: Trial) -> None:
    """It is started again on its host, and makes steps; the other one makes steps meanwhile."""
    command, victim = trial.run.commands[trial.victim], trial.victim
    killed = command.wait_for_rank(victim)
    with WatchedBox(trial.run.commands[0]) as box:
        steps = [box.steps(rank) for rank in range(2)]
        killed.kill()
        command.until(lambda: box.steps(trial.other) > steps[trial.other] + STEPS_AFTER, "the other continues")
        command.until(lambda: command.ranks().get(victim, killed).pid != killed.pid, "it is started again")
        back = box.steps(victim)
        command.until(lambda: box.steps(victim) > max(back, steps[victim]) + 1, "it makes steps")
    trial.must_go_on(names=rf"rank {victim} on \S+#{victim} was killed by signal 9 .* it starts again")


def link_cut(trial: Trial) -> None:
    trial.hosts[trial.victim].set_interface("down")
    trial.must_name(0, 1)


def half_open(trial: Trial) -> None:
    """The network loses all that the victim sends, and the victim still hears the other."""
    to = ("neighbour", "replace", trial.hosts[trial.other].address, *_WRONG_HARDWARE)
    subprocess.run(["ip", "-n", trial.hosts[trial.victim].name, *to], check=True)
    trial.must_name(0, 1)


def link_at_one_percent(trial: Trial) -> None:
    """1 Mbit/s, which is 1 % of a slow link."""
    for host in trial.hosts:
        subprocess.run(["tc", "-n", host.name, "qdisc", "replace", "dev", INTERFACE, "root", *_SLOW], check=True)
    trial.must_go_on()


def clock_off(trial: Trial) -> None:
    """The victim's clocks were an hour ahead from the start."""
    trial.must_go_on()


def another_version(trial: Trial) -> None:
    for number in range(len(trial.hosts)):
        trial.must_end(number, BAD_INPUT, r"host 1 \(\S+\) has torch \S+, and host 0 ")


def port_of_another_run(trial: Trial) -> None:
    """One host of another run has this run's port; it ends, and this run continues."""
    place = ("--nodes", 2, "--node-rank", trial.victim, "--master-addr", trial.hosts[0].address)
    words = ("train", "--solver", trial.solver, "--workers", 1, "--timeout", TIMEOUT_S, *place)
    out = ("--out", trial.folder / "stranger") if trial.victim == 0 else ()
    folder, prefix = trial.folder / f"out-host{trial.victim}", trial.hosts[trial.victim].prefix
    names = r"host 1 did not come to|cannot be reached within"
    with Command(*words, "--master-port", trial.run.port, *out, folder=folder, prefix=prefix) as stranger:
        trial.check(stranger, "the other run", FAILED, names)
    trial.must_go_on()


@dataclass(frozen=True)
class Fault:
    """It befalls a run at a random moment. The victim's command follows the words of `prefix`, if there are any.

    A run that `is_refused` never begins. Workers wait for each other, or train `at_center`.
    """

    befalls: Callable[[Trial], None]
    prefix: Callable[[Path], tuple[object, ...]] | None = None
    is_refused: bool = False
    at_center: bool = False


def _an_hour_ahead(_folder: Path) -> tuple[object, ...]:
    return ("unshare", "--time", "--monotonic", 3600, "--boottime", 3600)


def _other_torch(folder: Path) -> tuple[object, ...]:
    """The version is what the installed package says, and this folder comes first."""
    package = folder / "other" / "torch-9.9.9.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text(_OTHER_TORCH)
    return ("env", f"PYTHONPATH={package.parent}")


FAULTS = {
    "host lost": Fault(host_lost),
    "link cut": Fault(link_cut),
    "half-open link": Fault(half_open),
    "link at 1 %": Fault(link_at_one_percent),
    "clock off by an hour": Fault(clock_off, _an_hour_ahead),
    "another version": Fault(another_version, _other_torch, is_refused=True),
    "port of another run": Fault(port_of_another_run),
    "worker killed, at a center": Fault(worker_killed_at_center, at_center=True),
    "host lost, at a center": Fault(host_lost_at_center, at_center=True),
    "link cut, at a center": Fault(link_cut_at_center, at_center=True),
}


def run(short: bool = False) -> list[Figure]:
    require_namespaces()
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        digits = Path(folder, "digits")
        write_digits(digits)
        return [_figure(name, fault, digits, short) for name, fault in FAULTS.items()]


def _figure(name: str, fault: Fault, digits: Path, short: bool) -> Figure:
    """How many trials were right, of all."""
    trials, right, longest_s = 1 if short else TRIALS, 0, 0.0
    for number in range(trials):
        chance = random.Random(f"{name} {number}")
        wrong, seconds = _tried(fault, digits, chance)
        right, longest_s = right + (not wrong), max(longest_s, seconds)
        for sentence in wrong:
            print(f"{name}, trial {number}: {sentence}", file=sys.stderr, flush=True)
    print(f"{name}: {right} of {trials} right, {longest_s:.1f} s at most", file=sys.stderr, flush=True)
    share = right / trials
    return Figure(f"{name}: right trials of all", right, trials, "trials", share, share, share, trials, 1.0)


def _tried(fault: Fault, digits: Path, chance: random.Random) -> tuple[list[str], float]:
    """Sentences about what was wrong, and the seconds from the fault to the end of all."""
    victim = chance.randrange(2)
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as name, ExitStack() as closing:
        folder, hosts = Path(name), closing.enter_context(two_hosts())
        solver = write_solver(write_net(folder, digits), 10_000_000)
        prefixes: list[tuple[object, ...]] = [host.prefix for host in hosts]
        if fault.prefix is not None:
            prefixes[victim] += fault.prefix(folder)
        place = {"prefixes": prefixes, "address": hosts[0].address, "timeout_s": TIMEOUT_S}
        flags = ("--solver", solver, *(AT_CENTER if fault.at_center else ()))
        run_ = closing.enter_context(started(folder, (1, 1), *flags, **place))
        trial = Trial(folder, solver, hosts, run_, victim, [])
        ranks: list[psutil.Process] = []
        if not fault.is_refused:
            run_.commands[0].wait_for_step(run_.out, 2)
            ranks = [rank for command in run_.commands for rank in command.ranks().values()]
            time.sleep(chance.random() * RANDOM_S)
        began_s = time.monotonic()
        try:
            fault.befalls(trial)
        except AssertionError as error:
            trial.wrong.append(str(error))
        seconds = time.monotonic() - began_s
        _, alive = psutil.wait_procs(ranks, timeout=LONGEST_S)
        trial.wrong.extend(f"left: {process}" for process in living(alive))
    return trial.wrong, seconds


def _shown(ended: Ended) -> str:
    return f"exit code {ended.return_code}, {ended.errors[-400:]!r}"
