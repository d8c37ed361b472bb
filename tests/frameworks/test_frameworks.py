"""The examples in other frameworks' loops: with `sync` the losses of the framework's own DistributedDataParallel.

Each line of an example that Samovar changed says what it was; with these put back it is the framework's own script.
"""

import importlib.util
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from samovar.launch.wishes import METRICS
from samovar.report.metrics import read_metrics

BIN = Path(sys.executable).parent
WAS = re.compile(r"^( *).*# was: (.*)$", re.MULTILINE)
MOST_LINES_CHANGED = 3
TIMEOUT_S = 280.0
LAUNCHED = ("transformers_trainer", "accelerate_loop")  # the others start their ranks themselves
FRAMEWORKS = {
    "transformers_trainer": "transformers",
    "accelerate_loop": "accelerate",
    "lightning_trainer": "lightning",
    "fabric_loop": "lightning",
}
OTHER_STRATEGY = {
    "transformers_trainer": ("eval_dataset=Parity(256))", 'eval_dataset=Parity(256), strategy="{strategy}")'),
    "accelerate_loop": ("gradient_accumulation_steps=2)", 'gradient_accumulation_steps=2, strategy="{strategy}")'),
    "lightning_trainer": ('SamovarStrategy("sync")', 'SamovarStrategy("{strategy}")'),
    "fabric_loop": ('FabricStrategy("sync")', 'FabricStrategy("{strategy}")'),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(params=FRAMEWORKS)
def name(request: pytest.FixtureRequest) -> str:
    framework = FRAMEWORKS[request.param]
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed: pip install -e '.[frameworks]'")
    return str(request.param)


def losses_of(command: Sequence[object], folder: Path, most_attempts: int = 1) -> list[float]:
    """What rank 0 prints: its losses, and the final one."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRANSFORMERS_OFFLINE": "1", METRICS: str(folder / "figures")}
    for _ in range(most_attempts):
        completed = subprocess.run(
            list(map(str, command)),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if completed.returncode == 0:
            break
    assert completed.returncode == 0, completed.stderr[-3000:]
    lines = re.findall(r"^(?:\[0\] )?(?:losses|final) (.*)$", completed.stdout, re.MULTILINE)
    return [float(word) for line in lines for word in line.split()]


def run(name: str, text: str, folder: Path, *, plain: bool = False) -> list[float]:
    script = folder / f"{name}.py"
    script.write_text(text)
    launcher: list[object] = [sys.executable]
    if name in LAUNCHED and plain:
        launcher = [BIN / "torchrun", "--standalone", "--nproc-per-node", 2]
    elif name in LAUNCHED:
        launcher = [BIN / "samovar", "run", "-n", 2]
    # DDP's own run aborts at its end once in a while: the interpreter ends while a thread of its process group runs.
    return losses_of([*launcher, script], folder, most_attempts=3 if plain else 1)


def test_the_losses_are_those_of_the_framework_itself(name: str, tmp_path: Path, repository_root: Path) -> None:
    text = (repository_root / "examples" / "frameworks" / f"{name}.py").read_text()
    assert 1 <= len(WAS.findall(text)) <= MOST_LINES_CHANGED
    theirs = run(name, WAS.sub(r"\1\2", text), tmp_path, plain=True)
    assert len(theirs) > 5
    assert run(name, text, tmp_path) == pytest.approx(theirs, rel=1e-5)


def test_another_strategy_trains_to_the_end(name: str, tmp_path: Path, repository_root: Path) -> None:
    text = (repository_root / "examples" / "frameworks" / f"{name}.py").read_text()
    old, new = OTHER_STRATEGY[name]
    assert old in text
    losses = run(name, text.replace(old, new.format(strategy="sync-easgd")), tmp_path)
    assert len(losses) > 5
    assert all(math.isfinite(loss) for loss in losses)
    assert losses[-1] < losses[0]
    lines = read_metrics(tmp_path / "figures/metrics.jsonl", "train")
    assert all(line["samples"] > 0 and line["data_s"] > 0.0 for line in lines)
    assert [line["step"] for line in lines] == sorted({line["step"] for line in lines}) != []


def test_accelerate_refuses_a_second_model_also_in_a_prepare_of_its_own() -> None:
    pytest.importorskip("accelerate")
    program = (
        "from torch import nn, optim\n"
        "from samovar.integrations.accelerate import Accelerator\n"
        "accelerator = Accelerator(cpu=True)\n"
        "for model in (nn.Linear(2, 2), nn.Linear(2, 1)):\n"
        "    accelerator.prepare(model, optim.SGD(model.parameters(), 0.1))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert "got 2 models and 2 optimizers" in ended.stderr
