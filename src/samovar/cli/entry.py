"""The program `samovar`: loads the commands, and turns every error and signal into one sentence and an exit code."""

# Both are part of the interpreter: no file is read, and no signal can interrupt it, before the guard stands.
import _signal  # type: ignore[import-not-found]
import posix


def _end_at_once(number: int, _frame: object) -> None:
    """While modules load there is nothing to save, and an exception would end in the middle of an import."""
    name = {_signal.SIGINT: "SIGINT", _signal.SIGTERM: "SIGTERM"}[number]
    posix.write(2, f"samovar: ended by {name} before it began\n".encode())
    posix._exit(128 + number)


_GUARDED = [number for number in (_signal.SIGINT, _signal.SIGTERM) if _signal.getsignal(number) != _signal.SIG_IGN]
for _number in _GUARDED:
    _signal.signal(_number, _end_at_once)

import importlib  # noqa: E402  after the guard
import signal  # noqa: E402
import sys  # noqa: E402


class _Terminated(BaseException):
    """SIGTERM came where no run took it."""


def main() -> None:
    """Run the command line (see docs/commands.md for the exit codes)."""
    # Only now: a Ctrl-C while the commands load must end as quietly as one a moment later.
    commands = importlib.import_module("samovar.cli.commands")
    try:
        _listen()
        code = commands.run()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except _Terminated:
        sys.stderr.write("samovar: ended by SIGTERM before there was anything to save\n")
        code = 128 + signal.SIGTERM
    finally:
        for number in _GUARDED:  # what is left is the interpreter's own end
            signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def _listen() -> None:
    """From here on signals are exceptions, until a run takes them."""
    if signal.SIGINT in _GUARDED:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.SIGTERM in _GUARDED:
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(_number: int, _frame: object) -> None:
    raise _Terminated


if __name__ == "__main__":
    main()
