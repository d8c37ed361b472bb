"""The program `samovar`: loads the commands, and turns every error into one sentence and an exit code."""

import importlib
import signal
import sys


def main() -> None:
    """Run the command line (see docs/commands.md for the exit codes)."""
    try:
        # Only now: a Ctrl-C while the commands load must end as quietly as one a moment later.
        commands = importlib.import_module("samovar.cli.commands")
        code = commands.run()
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    sys.exit(code)


if __name__ == "__main__":
    main()
