"""Becomes a rank's script: `python -P -m samovar.launch.script_rank LAUNCHER CPUS COMMAND...`.

Binds this process's life to the launcher's and pins it to cores; both outlast the exec. The script then runs as if a
user had started it: tracebacks, `__main__` and `sys.argv` are its own.
"""

import os
import signal
import sys

from samovar.launch.rank_arguments import end_with_parent


def main(arguments: list[str]) -> None:
    """Replace this process by COMMAND; CPUS is a list like 0,1."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # one that came in the meantime ends it here
    launcher, cpus, *command = arguments
    end_with_parent(int(launcher))
    os.sched_setaffinity(0, [int(cpu) for cpu in cpus.split(",")])
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
