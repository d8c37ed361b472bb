"""The command `samovar`: which commands there are; of these the one that is given is loaded, and no other."""

import errno
import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from typer.exceptions import Abort, TyperException

import samovar
from samovar.cli.command import GroupHelpLast, HelpLast
from samovar.core.errors import InputError, SamovarError
from samovar.core.modules import explained
from samovar.launch.wishes import words_to_complete

_OF_PATHS = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.EROFS, errno.ELOOP)


@dataclass(frozen=True, slots=True)
class Command:
    """Where a command stands: a function, or the app of a group; the module may hold its context's SETTINGS.

    A function that `takes_words` gives the command for the words of the command line.
    """

    module: str
    attribute: str
    has_help: bool = True
    takes_words: bool = False

    def add_to(self, app: typer.Typer, name: str, words: Sequence[str]) -> None:
        """Load the command."""
        module = importlib.import_module(self.module)
        loaded = getattr(module, self.attribute)
        if self.takes_words:
            loaded = loaded(words)
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=name)
        else:
            settings = getattr(module, "SETTINGS", None)
            app.command(name, cls=HelpLast, context_settings=settings, add_help_option=self.has_help)(loaded)


COMMANDS = {
    "init": Command("samovar.cli.init", "init"),
    "train": Command("samovar.cli.train", "train", takes_words=True),
    "test": Command("samovar.cli.train", "test"),
    "time": Command("samovar.cli.time", "time_net"),
    "predict": Command("samovar.cli.predict", "predict", takes_words=True),
    "report": Command("samovar.cli.report", "report"),
    "watch": Command("samovar.cli.report", "watch_run"),
    "inspect": Command("samovar.cli.files", "inspect"),
    "convert": Command("samovar.cli.files", "convert"),
    "caffe": Command("samovar.cli.caffe_command", "caffe", has_help=False),
    "run": Command("samovar.cli.run", "run_script"),
    "doctor": Command("samovar.cli.doctor", "doctor"),
    "data": Command("samovar.cli.data", "data_app"),
    "box": Command("samovar.cli.box", "box_app"),
}
_EXIT_CODES = (
    "Exit codes: 0 done, 2 wrong input, 3 failed, 4 weights are not finite, 75 stopped with a snapshot to resume from, "
    "128 + N ended by signal N."
)
_WITHOUT_COMMAND = ("--version", "--install-completion", "--show-completion")


def app_of(words: Sequence[str]) -> typer.Typer:
    """The command line for these words: with the command that they begin with, else with all commands."""
    app = typer.Typer(
        help="Train deep networks on several workers, and choose how they share what they learn.",
        epilog=_EXIT_CODES,
        no_args_is_help=True,
        context_settings={"help_option_names": ["--help", "-h"]},
        cls=GroupHelpLast,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(options)
    for name in _needed(words[0] if words else ""):
        COMMANDS[name].add_to(app, name, words)
    return app


def _needed(word: str) -> Sequence[str]:
    if word in _WITHOUT_COMMAND:
        return ()
    return (word,) if word in COMMANDS else tuple(COMMANDS)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"samovar {samovar.__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command."""


def run(words: Sequence[str], on_loaded: Callable[[], None]) -> int:
    """Load the command that these words begin with, call `on_loaded`, and run the command; the exit code."""
    asked = words_to_complete()
    try:
        # To complete a command line is to load its command, but to run nothing that it names.
        app = app_of(words if asked is None else asked[:1])
        on_loaded()
        code = app(standalone_mode=False)
    except Abort as error:
        raise KeyboardInterrupt from error
    except SystemExit as error:
        code = 0 if isinstance(error.__context__, BrokenPipeError) else error.code  # 0: nobody reads the help any more
    except TyperException as error:
        # Without arguments the help was shown, and there is nothing to say.
        if message := " ".join(error.format_message().split()).rstrip("."):
            command = getattr(getattr(error, "ctx", None), "command_path", None) or "samovar"
            message = _hint(command, getattr(error, "option_name", "")) or message
            _told(InputError(f"{message}{' See' if message.endswith('?') else '; see'} `{command} --help`"))
        return InputError.exit_code
    except SamovarError as error:
        return error.exit_code if error.is_shown else _told(error)
    except (OSError, ModuleNotFoundError) as error:
        known = _known(error) if isinstance(error, OSError) else explained(error)
        if known is None:
            raise
        return _told(known)
    return int(code or 0)


def _hint(command: str, option: str) -> str:
    """Advice about a flag that a command lacks, or "": `samovar run` has no flags of strategies."""
    if command != "samovar run" or not option:
        return ""
    argument = importlib.import_module("samovar.strategies.config").in_python(option)
    given = f"in a script, give {argument}=... to samovar.replicate"
    return "" if argument == option else f"{option} is a flag of `samovar train`; {given}"


def _known(error: OSError) -> SamovarError | None:
    """The sentence for what a user can mend."""
    if error.filename and error.errno in _OF_PATHS:
        return InputError(f"{error.filename}: {error.strerror}; give one that you may use")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return InputError(f"{error.strerror}; give fewer workers, or raise the limit (`ulimit -n`)")
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # takes what stdout still holds
    return SamovarError(f"{error.strerror}: {error.filename or 'the output'} is not complete; free some space")


def _told(error: SamovarError) -> int:
    importlib.import_module("samovar.report.console").show_error(f"samovar: error: {error}")
    return error.exit_code
