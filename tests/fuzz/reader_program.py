"""Reads all mutated inputs of some kinds in the working folder, one after the other, and tells what came of each.

A line of JSON for each: name, outcome ("read", "refused", or what was raised), message, the process's largest memory
so far, and the files that Python opened for writing meanwhile. A read that hangs or crashes ends the program; the
last line then has no outcome.
"""

import faulthandler
import json
import os
import re
import shutil
import sys
import traceback
from pathlib import Path

from samovar.core.errors import InputError
from tests.fuzz.case import READ, REFUSED
from tests.fuzz.cases import cases_of
from tests.fuzz.readers import READERS

DEADLINE_S = 60.0

_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.link", "os.truncate", "os.chmod"}
_CHANGES |= {"os.exec", "os.fork", "os.system", "os.posix_spawn", "subprocess.Popen", "socket.connect"}
_CHANGES |= {"pickle.find_class"}


class Watch:
    """An audit hook that notes what Python opens to write, makes, renames, removes, starts or unpickles meanwhile."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self._is_on = False
        sys.addaudithook(self._note)

    def __enter__(self) -> None:
        self.found, self._is_on = [], True

    def __exit__(self, *_: object) -> None:
        self._is_on = False

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self._is_on:
            return
        flags = arguments[2] if event == "open" and isinstance(arguments[2], int) else 0
        if event in _CHANGES or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            self.found.append(f"{event} {arguments}"[:200])


def main(kinds: list[str]) -> None:
    watch = Watch()
    for index, case in enumerate(cases_of(kinds)):
        folder = Path(f"case{index}")
        folder.mkdir()
        path = case.write(folder)
        before = sorted(folder.rglob("*"))
        print(json.dumps({"name": case.name, "expected": case.expected}), flush=True)
        faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
        with watch:
            outcome, message = read(case.kind, path)
        faulthandler.cancel_dump_traceback_later()
        changed = [] if sorted(folder.rglob("*")) == before else ["changed the folder"]
        peak_kib = _peak_kib()
        told = {"outcome": outcome, "message": message[:5000], "length": len(message), "peak_kib": peak_kib}
        print(json.dumps(told | {"written": watch.found + changed}), flush=True)
        shutil.rmtree(folder)


def _peak_kib() -> int:
    """This program's own: `getrusage` begins with the memory of the process that started it."""
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(peak)


def read(kind: str, path: Path) -> tuple[str, str]:
    """The outcome and what was said."""
    try:
        READERS[kind](path)
    except InputError as error:
        return REFUSED, str(error)
    except BaseException:
        return "raised", traceback.format_exc()
    return READ, ""


if __name__ == "__main__":
    main(sys.argv[1:])
