"""Try an installed Samovar as a stranger would: the doctor, the README's lines of torch, a small net of Caffe's.

python tools/wheel_try.py [--readme FILE]

It needs Samovar and PyTorch in this Python. Of the source tree it needs this file and the README. If PyTorch is not
installed, it checks the errors instead: they must name the package, and how to install it.
"""

import argparse
import importlib.util
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SAMOVAR = Path(sys.executable).with_name("samovar")
README = Path(__file__).resolve().parent.parent / "README.md"
COMPILERS = ("cc", "gcc", "g++", "clang", "clang++", "cmake", "ninja", "make")
STEPS = 20

NET = """
layer { name: "data" type: "DummyData" top: "data" top: "label"
  dummy_data_param { shape { dim: 16 dim: 8 } shape { dim: 16 }
    data_filler { type: "gaussian" } data_filler { type: "constant" value: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
"""
SOLVER = f"""
train_net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" momentum: 0.9
max_iter: {STEPS} display: 5 random_seed: 1 snapshot_prefix: "small"
"""
# What the README's lines take from the reader's own program.
OWN_LOOP = """
import torch, samovar
torch.manual_seed(1)
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_fn = torch.nn.CrossEntropyLoss()
rows = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
loader = torch.utils.data.DataLoader(rows, batch_size=8)
"""


def main(arguments: list[str]) -> int:
    """Exit code 0 if everything works."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readme", type=Path, default=README)
    parser.add_argument("--no-compiler", action="store_true", help="fail if there is a compiler on the path")
    given = parser.parse_args(arguments)
    found = [name for name in COMPILERS if shutil.which(name)]
    print(f"Python {sys.version.split()[0]}, compilers on the path: {', '.join(found) or 'none'}", flush=True)
    if given.no_compiler and found:
        return 1
    with tempfile.TemporaryDirectory(prefix="samovar-try-") as name:
        folder = Path(name)
        print(samovar(folder, "--version").strip(), flush=True)
        if importlib.util.find_spec("torch") is None:
            without_torch(folder)
        else:
            doctor(folder)
            lines_of_readme(folder, given.readme.read_text(encoding="utf-8"))
            small_net(folder)
    return 0


def samovar(folder: Path, *words: str, exit_code: int = 0) -> str:
    """Run the command in `folder`, and return all that it prints. Another exit code ends the program."""
    completed = subprocess.run([SAMOVAR, *words], cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if completed.returncode != exit_code:
        sys.exit(f"samovar {' '.join(words)}: exit code {completed.returncode}\n{completed.stdout}{completed.stderr}")
    return completed.stdout + completed.stderr


def doctor(folder: Path) -> None:
    """It must find nothing that makes training impossible."""
    findings = json.loads(samovar(folder, "doctor", "--json"))["findings"]
    errors = [finding["text"] for finding in findings if finding["level"] == "error"]
    if errors:
        sys.exit(f"samovar doctor: {errors}")
    print("samovar doctor: no errors", flush=True)


def without_torch(folder: Path) -> None:
    """Each command that needs PyTorch must say in one sentence how to install it."""
    (finding,) = (
        finding
        for finding in json.loads(samovar(folder, "doctor", "--json"))["findings"]
        if "PyTorch is not installed" in finding["text"]
    )
    print(f"samovar doctor: {finding['text']}: {finding['next_step']}", flush=True)
    (folder / "net.prototxt").write_text(NET)
    (folder / "solver.prototxt").write_text(SOLVER)
    for words in (("train", "--solver", "solver.prototxt"), ("inspect", "net.prototxt")):
        said = samovar(folder, *words, exit_code=2).strip()
        if "\n" in said or "pip install torch" not in said:
            sys.exit(f"samovar {' '.join(words)}: does not say in one line how to install PyTorch:\n{said}")
    print(f"samovar train, samovar inspect: {said}", flush=True)


def lines_of_readme(folder: Path, readme: str) -> None:
    """The README's first block of Python that shares a model, on two ranks."""
    blocks = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    lines = next(block for block in blocks if "samovar.replicate(" in block)
    check = "assert all(weight.isfinite().all() for weight in model.parameters())\nprint('finite')\n"
    (folder / "loop.py").write_text(OWN_LOOP + lines + check)
    said = samovar(folder, "run", "-n", "2", "--oversubscribe", "loop.py")
    if "finite" not in said:
        sys.exit(f"the README's lines of torch: did not come to their end:\n{said}")
    print("the README's lines of torch: run on two ranks", flush=True)


def small_net(folder: Path) -> None:
    """A net of one layer learns on two workers."""
    (folder / "net.prototxt").write_text(NET)
    (folder / "solver.prototxt").write_text(SOLVER)
    samovar(folder, "train", "--solver", "solver.prototxt", "--workers", "2", "--oversubscribe", "--out", "run")
    result = json.loads((folder / "run" / "result.json").read_text())
    loss = result["train_loss"]
    if not (math.isfinite(loss) and loss < 1.0):
        sys.exit(f"samovar train: the loss is {loss} after {STEPS} steps")
    digest = result["weights_sha256"][:8]
    print(f"samovar train: loss {loss:.3g} after {STEPS} steps on two workers, weights {digest}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
