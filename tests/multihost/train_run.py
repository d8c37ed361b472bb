"""`samovar train` on several hosts: namespaces, or launchers on the loopback of this one."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.multiproc.command import Command, Ended, result_of
from tests.multiproc.ports import reserved_port

TIMEOUT_S = 60.0  # of waits between ranks: for a busy machine


@dataclass
class HostsRun:
    """The launchers of a run, host 0 first; its run folder is `out`."""

    out: Path
    commands: list[Command]
    port: int

    def wait(self) -> list[Ended]:
        """How each launcher ended."""
        return [command.wait() for command in self.commands]

    def succeed(self) -> dict[str, Any]:
        """The result of a run that must end well on all hosts."""
        ended = self.wait()
        assert [each.return_code for each in ended] == [0] * len(ended), [each.errors for each in ended]
        return result_of(self.out)


@contextmanager
def started(
    folder: Path,
    workers: Sequence[int],
    *arguments: object,
    own: Sequence[tuple[object, ...]] = (),
    prefixes: Sequence[tuple[object, ...]] = (),
    address: str = "127.0.0.1",
    timeout_s: float = TIMEOUT_S,
    out: str = "out",
    port: int | None = None,
) -> Iterator[HostsRun]:
    """A run with so many workers on each host; `arguments` are those of all, `own` those of each host.

    Each host has a working folder of its own. `prefixes` are the words that run a command on it.
    """
    with ExitStack() as stack:
        port = port or stack.enter_context(reserved_port())
        commands = []
        for number, count in enumerate(workers):
            home = folder / f"{out}-host{number}"
            home.mkdir(exist_ok=True)
            place = ("--nodes", len(workers), "--node-rank", number, "--master-addr", address, "--master-port", port)
            given = ("train", *arguments, "--workers", count, "--threads-per-worker", 1, "--timeout", timeout_s, *place)
            given += ("--out", folder / out) if number == 0 else ()
            given += tuple(own[number]) if own else ()
            prefix = tuple(prefixes[number]) if prefixes else ()
            commands.append(stack.enter_context(Command(*given, folder=home, prefix=prefix, is_forked=True)))
        yield HostsRun(folder / out, commands, port)


def both(folder: Path, *own: tuple[object, ...]) -> list[tuple[int, str]]:
    """Exit code and error of two hosts with arguments of their own."""
    with started(folder, (1, 1), own=own) as run_:
        return [(each.return_code, each.error) for each in run_.wait()]
