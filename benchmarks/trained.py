"""`samovar train` as a side of a comparison."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

SAMOVAR = Path(sys.executable).with_name("samovar")


def trained(folder: Path, *arguments: object) -> dict[str, Any]:
    """The result of a run in `folder`, of which nothing is left there.

    Its "tests" have the seconds of training before them. In step these are without tests. Asynchronous workers train on
    while rank 0 tests, so theirs are by the clock, and have the tests before.
    """
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    command = [SAMOVAR, "train", *arguments, "--out", out]
    subprocess.run([str(word) for word in command], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    result["tests"], seconds = [], 0.0
    for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()):
        seconds += line["seconds"] if line["kind"] == "train" else 0.0
        if line["kind"] == "test":
            result["tests"].append({**line, "seconds": seconds})
    shutil.rmtree(out)
    return result
