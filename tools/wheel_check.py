"""Install the wheel in dist/ as a stranger would, and try it in a root that has no compiler and no source tree.

python tools/wheel_check.py [--wheels FOLDER] [--python PYTHON]... [--without-torch]

The root holds a virtual environment with the wheel, Python's own library, and the shared libraries of both. It has no
shell, no compiler, no other package. tools/wheel_try.py runs there. It needs Linux with user namespaces (`unshare`).
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRY = "/check/wheel_try.py"
TEXTS = ("tools/wheel_try.py", "README.md")
KERNEL = ("/proc", "/sys", "/dev")
ASK = "import os, sys, sysconfig; print(os.path.realpath(sys.executable), sysconfig.get_path('stdlib'))"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python outside of virtual environments."""

    executable: Path
    standard_library: Path

    @classmethod
    def of(cls, python: str) -> "Interpreter":
        """The one that `python` starts, also if that is a virtual environment's."""
        said = subprocess.run([python, "-I", "-c", ASK], capture_output=True, text=True, check=True).stdout.split()
        return cls(*map(Path, said))


def main(arguments: list[str]) -> int:
    """Exit code 0 if the wheel works with every Python."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist")
    parser.add_argument("--python", action="append", help="may be given several times (default: this one)")
    parser.add_argument("--without-torch", action="store_true", help="hold the errors that say what to install")
    given = parser.parse_args(arguments)
    for python in given.python or [sys.executable]:
        with tempfile.TemporaryDirectory(prefix="samovar-check-") as name:
            folder = Path(name)
            interpreter = Interpreter.of(python)
            environment = install(given.wheels, interpreter, folder / "environment", given.without_torch)
            root = make_root(folder / "root", interpreter, environment)
            if code := try_in(root, interpreter, environment):
                return code
    return 0


def install(wheels: Path, interpreter: Interpreter, environment: Path, without_torch: bool) -> Path:
    """A new virtual environment with the wheel that pip chooses for this Python, and what it depends on."""
    run(str(interpreter.executable), "-m", "venv", str(environment))
    pip = (str(environment / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check")
    chosen = environment / "wheel"
    run(*pip, "download", "--no-deps", "--no-index", "--find-links", str(wheels), "-d", str(chosen), "samovar")
    (wheel,) = chosen.iterdir()
    print(f"installing {wheel.name}", flush=True)
    if without_torch:
        run(*pip, "install", "--no-deps", str(wheel))
        run(*pip, "install", "-c", str(ROOT / "constraints.txt"), *dependencies_but_torch(wheel))
    else:
        run(*pip, "install", "-c", str(ROOT / "constraints.txt"), str(wheel))
    return environment


def dependencies_but_torch(wheel: Path) -> list[str]:
    """As the wheel names them."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    found: list[str] = re.findall(r"^Requires-Dist: ((?!torch\b)[^;\n]+)$", text, re.MULTILINE)
    return found


def make_root(root: Path, interpreter: Interpreter, environment: Path) -> Path:
    """A folder with all files that the environment needs, or places for them to be mounted."""
    for path in shared_libraries(
        [interpreter.executable, *modules(interpreter.standard_library), *modules(environment)]
    ):
        copy(path, root)
    copy(interpreter.executable, root)
    for place in (*KERNEL, interpreter.standard_library, environment, "/tmp", "/check"):
        inside(root, place).mkdir(parents=True, exist_ok=True)
    for text in TEXTS:
        shutil.copy(ROOT / text, root / "check")
    return root


def modules(folder: Path) -> list[Path]:
    """All that is linked with shared libraries."""
    return sorted({path.resolve() for path in folder.rglob("*.so*") if path.is_file()})


def shared_libraries(files: list[Path]) -> set[Path]:
    """Of the system, those that the dynamic linker finds for `files`."""
    said = subprocess.run(["ldd", *map(str, files)], capture_output=True, text=True, check=False).stdout
    found = {Path(path) for path in re.findall(r"(?:=> |^\t)(/\S+) \(", said, re.MULTILINE)}
    return {path for path in found if str(path).startswith(("/lib", "/usr/lib"))} | {
        path for path in found if path.name.startswith("libpython")
    }


def copy(path: Path, root: Path) -> None:
    """Put a file into the root, at the same place."""
    inside(root, path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, inside(root, path))


def inside(root: Path, path: Path | str) -> Path:
    """Where it is below the root."""
    return root / str(path).lstrip("/")


def try_in(root: Path, interpreter: Interpreter, environment: Path) -> int:
    """The exit code of wheel_try.py in the root, which sees nothing else of this machine but its kernel."""
    mounted = (*KERNEL, str(interpreter.standard_library), str(environment))
    lines = [f"mount --rbind {shlex.quote(path)} {shlex.quote(str(inside(root, path)))}" for path in mounted]
    python = str(environment / "bin" / "python")
    command = ["chroot", str(root), python, TRY, "--readme", "/check/README.md", "--no-compiler"]
    clean = [f"PATH={environment / 'bin'}", "HOME=/tmp", "LANG=C.UTF-8"]
    lines.append(f"exec env -i {shlex.join(clean)} $(command -v {command[0]}) {shlex.join(command[1:])}")
    script = "\n".join(lines)
    return subprocess.run(["unshare", "--map-root-user", "--mount", "sh", "-ec", script], check=False).returncode


def run(*command: str) -> None:
    """Run it, and end with its exit code if it fails."""
    completed = subprocess.run(command, check=False)
    if completed.returncode:
        sys.exit(completed.returncode)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
