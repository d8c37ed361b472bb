"""The program `samovar` with its commands loaded: a child of its own runs each line that it reads.

A line is a JSON list: the folder, the files of stdout and stderr, and the arguments. It answers with the exit code.
"""

import json
import os
import sys

import samovar.cli.commands  # noqa: F401  what `entry.main` would load
from samovar import _native
from samovar.cli import entry


def main() -> None:
    _native.die_with_parent()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            become(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def become(folder: str, output: str, errors: str, arguments: list[str]) -> None:
    """The command in this process, with which it ends."""
    os.setsid()
    os.chdir(folder)
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, output, os.O_WRONLY), (2, errors, os.O_WRONLY)):
        opened = os.open(path, flags | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = ["samovar", *arguments]
    code = 1
    try:
        entry.main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
