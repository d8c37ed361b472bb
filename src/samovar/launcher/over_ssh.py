"""`samovar train --hosts FILE`: the same command is started on the other hosts over ssh."""

import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from samovar.core.clock import Deadline
from samovar.core.errors import InputError, SamovarError
from samovar.launch.identity import own_key_file
from samovar.launch.meeting import HostPlace, refusal
from samovar.transports.keys import read_key
from samovar.transports.links import door
from samovar.transports.rendezvous import addresses_towards, is_loopback, leads_here_alone
from samovar.transports.tcp_listen import address_of, listen

_LINE = re.compile(r"(?P<name>[^\s:#=-][^\s:#=]*)(?:(?:\s+slots\s*=\s*|:)0*(?P<workers>[1-9][0-9]{0,3}))?\s*(?:#.*)?")
_ENDING_S = 15.0  # the others end by themselves when host 0 has told them how the run ended
_LOOK_S = 0.1
# What host 0 alone has, or what follows from FILE; each has a value.
_DROPPED = ("--hosts", "--ssh", "--workers", "--out", "--master-addr", "--key-file")


@dataclass(frozen=True, slots=True)
class NamedHost:
    """A line of FILE: a name for ssh, and the number of workers there, None for that of the command."""

    name: str
    workers: int | None


_Started = list[tuple[NamedHost, "subprocess.Popen[bytes]"]]


def read_hosts(path: Path) -> list[NamedHost]:
    """The hosts in a file of lines NAME, NAME slots=N (as Open MPI has it) or NAME:N (MPICH); this one first."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"--hosts {path}: cannot be read ({error}); give a file with a host on each line") from error
    hosts = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise InputError(f"--hosts {path}:{number}: {line.strip()[:80]!r} is not NAME, NAME slots=N or NAME:N")
        hosts.append(NamedHost(found["name"], None if found["workers"] is None else int(found["workers"])))
    if len(hosts) < 2:
        raise InputError(f"--hosts {path}: names {len(hosts)} hosts; name two or more, this one first")
    return hosts


@contextmanager
def started_over_ssh(
    path: Path, ssh: str, words: Sequence[str], workers: str, address: str | None, key_file: Path | None
) -> Iterator[tuple[str, HostPlace]]:
    """The number of workers here and this host's place, while the others run the command `words` of this one.

    They reach this host at `address`; None: the one from which it reaches them.
    """
    hosts = read_hosts(path)
    own, others, key_file = hosts[0], hosts[1:], key_file or own_key_file()
    _require_here(path, own.name)
    client: list[str] = []
    with suppress(ValueError):  # a quote does not end
        client = shlex.split(ssh)
    if not client:
        raise InputError(f"--ssh {ssh!r}: names no program, or has a quote that does not end; give ssh and its flags")
    started: _Started = []
    with ExitStack() as stack:
        listening = listen(address or _address_towards([host.name for host in others]))
        place, port = address_of(listening)
        stack.callback(_end, started, (place, port), key_file)
        stack.enter_context(listening)  # closed first, if no meeting has closed it
        if address is not None and leads_here_alone(address, place):
            hint = "give an address that others reach, or leave it out"
            raise InputError(f"--master-addr {address}: leads to this host alone ({place}); {hint}")
        common = [*_kept(words), "--nodes", len(hosts), "--master-addr", place, "--master-port", port]
        common += [] if key_file is None else ["--key-file", key_file]
        for number, host in enumerate(others, 1):
            command = [*common, "--workers", host.workers or workers, "--node-rank", number]
            started.append((host, _start(client, host.name, command)))
        count = str(own.workers or workers)
        watch = _watching(started, shlex.join(client))
        yield count, HostPlace(0, place, port, len(hosts), key_file=key_file, listening=listening, watch=watch)


def _kept(words: Sequence[str]) -> list[str]:
    """The words that the other hosts get too."""
    kept: list[str] = []
    takes_next = False
    for word in words:
        flag, equals, _ = word.partition("=")
        if takes_next:
            takes_next = False
        elif flag in _DROPPED:
            takes_next = not equals
        else:
            kept.append("--quiet" if word == "--json" else word)  # host 0's stdout is for its answer
    return kept


def _require_here(path: Path, name: str) -> None:
    """Nobody is asked at the first host of FILE, so a start on another one must be seen here."""
    own = socket.gethostname()
    try:
        near, far = addresses_towards(name.rpartition("@")[2])
    except (OSError, UnicodeError):  # ssh alone knows the name, which may be this host's
        return
    if near != far and not is_loopback(far) and name.rpartition("@")[2].partition(".")[0] != own.partition(".")[0]:
        raise InputError(f"--hosts: {path} names {name} first, and this is {own}; start it there, or name {own} first")


def _start(client: Sequence[str], name: str, words: Sequence[object]) -> "subprocess.Popen[bytes]":
    """In the same working folder, by the same Python."""
    there = shlex.join([sys.executable, "-P", "-m", "samovar", *map(str, words)])
    command = [*client, name, f"cd {shlex.quote(str(Path.cwd()))} && exec {there}"]
    try:
        # A session of its own: Ctrl-C at this terminal is for this launcher, which tells the others.
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        raise InputError(f"--ssh {client[0]}: cannot be started ({error.strerror}); name the program of ssh") from error


def _watching(started: _Started, client: str) -> Callable[[], str | None]:
    def ended() -> str | None:
        for host, process in started:
            if (code := process.poll()) is not None:
                ends = f"ended with exit code {code} before the run began; see what it says"
                return f"the command on {host.name} {ends}, and try: {client} {host.name} true"
        return None

    return ended


def _end(started: _Started, address: tuple[str, int], key_file: Path | None) -> None:
    """Wait for the others. One that was still loading comes to `address` now, and is sent away."""
    deadline, why = Deadline.after(_ENDING_S), refusal("host 0 has ended before this host came")
    try:
        with suppress(SamovarError):
            key = None if key_file is None else read_key(key_file)
            with door(listen(*address), key, set()) as next_link:
                while any(process.poll() is None for _, process in started) and not deadline.passed():
                    if (came := next_link(Deadline.after(_LOOK_S))) is not None:
                        with closing(came[0]) as link, suppress(SamovarError):
                            link.send(why, deadline)
        for _, process in started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(deadline.remaining_s())
    finally:  # also if a signal ends the wait
        for _, process in started:
            process.kill()
            process.wait()


def _address_towards(names: Sequence[str]) -> str:
    """The one from which this host reaches the others; the loopback only if all of them are here."""
    here, unknown = "", ""
    for name in names:
        try:
            here = addresses_towards(name.rpartition("@")[2])[0]
        except (OSError, UnicodeError) as error:
            unknown = unknown or f"no way to {name} is known here ({error})"
        if here and not is_loopback(here):
            return here
    if unknown:
        raise InputError(f"--hosts: {unknown}; give --master-addr, an address of this host that the others reach")
    return here
