"""What the source package and the wheel hold: all that is needed, nothing else, and the same at every build."""

import tarfile
import zipfile
from pathlib import Path

import pytest
from scikit_build_core.build import build_sdist, build_wheel

import samovar

TEXTS = {"CHANGELOG.md", "CMakeLists.txt", "LICENSE", "PKG-INFO", "README.md", "SECURITY.md", "pyproject.toml"}
SUFFIXES = {".prototxt", ".toml", ".cpp", ".hpp", ".py", ".pyi", ".typed", ".css", ".js"}


def files(folder: Path, root: Path) -> set[str]:
    """Below `folder`, as seen from `root`; without what Python and compilers leave there."""
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(root)) for path in paths if path.suffix != ".so"}


@pytest.fixture
def root(repository_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(repository_root)
    return repository_root


def test_public_names_are_listed_before_they_are_loaded() -> None:
    assert set(samovar.__all__) <= set(dir(samovar))


def test_the_source_package_holds_what_a_build_needs_and_no_more(root: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / build_sdist(str(tmp_path))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names == TEXTS | files(root / "src" / "samovar", root) | files(root / "native", root)
    assert {Path(name).suffix for name in names - TEXTS} == SUFFIXES


def test_the_source_package_is_the_same_at_every_build(root: Path, tmp_path: Path) -> None:
    contents = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        contents.append((tmp_path / name / build_sdist(str(tmp_path / name))).read_bytes())
    assert contents[0] == contents[1]


def test_the_wheel_holds_the_package_its_types_and_its_license(root: Path, tmp_path: Path) -> None:
    # The compiled core is left out: only `make wheel-check` waits for that.
    settings: dict[str, str | list[str]] = {"wheel.cmake": "false", "build-dir": str(tmp_path / "build")}
    with zipfile.ZipFile(tmp_path / build_wheel(str(tmp_path), settings)) as archive:
        names = set(archive.namelist())
        metadata = next(archive.read(name).decode() for name in names if name.endswith("METADATA"))
    package = {name for name in names if name.startswith("samovar/")}
    assert package == files(root / "src" / "samovar", root / "src")
    assert "samovar/py.typed" in package
    kinds = {name.partition(".dist-info/")[2] for name in names - package}
    assert kinds == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
    assert "\nLicense-Expression: BSD-3-Clause\n" in metadata
