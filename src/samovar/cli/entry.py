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
import io  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402

_STDERR = 2


class _Ended(BaseException):
    """A signal came where no run took it."""

    def __str__(self) -> str:  # for those who wait for this process
        return f"ended by {signal.Signals(self.args[0]).name}"


def main() -> None:
    """Run the command line (`samovar --help` lists the exit codes)."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who starts us may ignore it; then no child's end has a code
    # No other file may get the number of a stream that the user has closed: ranks have streams of these numbers.
    while (nothing := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(nothing)
    # One that the user has closed takes what nobody reads.
    both = (sys.stdout, sys.stderr)
    sys.stdout, sys.stderr = (one or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w") for one in both)
    if isinstance(sys.stdout, io.TextIOWrapper) and (sys.stdout.errors == "strict" or sys.stdout.encoding != "utf-8"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may be no UTF-8, a net's no ASCII
    commands = importlib.import_module("samovar.cli.commands")
    number = 0
    try:
        # The command's own module, too, is loaded before signals become exceptions.
        code = commands.run(sys.argv[1:], on_loaded=_listen)
    except KeyboardInterrupt:  # typer's own, as Abort
        number = signal.SIGINT
    except _Ended as ended:
        (number,) = ended.args
    finally:
        for one in _GUARDED:  # what is left is the interpreter's own end
            signal.signal(one, signal.SIG_IGN)
    if number:
        sys.stderr.write(f"samovar: ended by {signal.Signals(number).name} before there was anything to save\n")
        code = 128 + number
    sys.exit(code)


def _listen() -> None:
    """From here on signals are exceptions, until a run takes them."""
    for number in _GUARDED:
        signal.signal(number, _end)


def _end(number: int, _frame: object) -> None:
    raise _Ended(number)


if __name__ == "__main__":
    main()
