"""Modules that are imported when they are asked for: packages, which may be missing, and a user's own files."""

import importlib
import sys
from dataclasses import dataclass
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from samovar.core.errors import InputError

# What pip installs, by the module's name.
_REQUIRED = {
    "torch": "torch",
    "numpy": "numpy",
    "google": "protobuf",
    "lmdb": "lmdb",
    "cryptography": "cryptography",
    "h5py": "h5py",
    "PIL": "pillow",
    "safetensors": "safetensors",
}
_OPTIONAL = {
    "greenlet": "'samovar[simulator]'",
    "matplotlib": "'samovar[simulator]'",
    "sklearn": "'samovar[digits]'",
    "tensorboard": "'samovar[tensorboard]'",
    "wandb": "'samovar[wandb]'",
    "mlflow": "'samovar[mlflow]'",
    "mpi4py": "'samovar[mpi]'",
}
_FORM = "give MODULE:NAME of a module in the working folder, or FILE.py:NAME"
_FOR_TORCH = "; without a GPU, add --index-url https://download.pytorch.org/whl/cpu"
_written_ns: dict[str, int] = {}  # of users' files that were imported


@dataclass(frozen=True, slots=True)
class Missing:
    """A package that is not installed, and the next step of the user."""

    text: str
    next_step: str

    @classmethod
    def of(cls, module: str) -> "Missing":
        """The one that `module` belongs to."""
        package = (_REQUIRED | _OPTIONAL)[module]
        if module == "torch":
            return cls("PyTorch is not installed, and Samovar computes with it", f"run `pip install torch`{_FOR_TORCH}")
        return cls(f"the Python module {module} is not installed", f"run `pip install {package}`")

    def as_error(self) -> InputError:
        """As one sentence."""
        return InputError(f"{self.text}; {self.next_step}")


def missing_modules() -> tuple[str, ...]:
    """The modules that Samovar needs and that are not installed. They are looked for, and not loaded."""
    return tuple(module for module in _REQUIRED if not is_installed(module))


def require_packages() -> None:
    """Raise InputError if a package that Samovar needs is not installed."""
    for module in missing_modules():
        raise Missing.of(module).as_error()


def require_optional(module: str) -> None:
    """Raise InputError if a package that the user has asked for is not installed."""
    if not is_installed(module):
        raise Missing.of(module).as_error()


def explained(error: ModuleNotFoundError) -> InputError | None:
    """The error as a sentence if its module belongs to a package that Samovar needs; None for any other module."""
    module = (error.name or "").partition(".")[0]
    return Missing.of(module).as_error() if module in _REQUIRED | _OPTIONAL else None


def is_installed(module: str) -> bool:
    """Whether the module can be loaded; it is looked for, and not loaded."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def object_at(source: str, what: str) -> tuple[str, object]:
    """`source` as every process finds it, in any working folder, and the object there.

    Imports the module, which runs its code. Raises InputError about `what` if there is no such object.
    """
    place, _, name = source.rpartition(":")
    if not place or not name.isidentifier():
        raise InputError(f"{what} {source}: {_FORM}")
    path = Path(place).resolve() if place.endswith(".py") else None
    if path is not None and not path.is_file():
        raise InputError(f"{what} {source}: no such file: {place}; {_FORM}")
    try:
        if path is None:
            _find_in(Path.cwd())  # if no other module has its name
        module = importlib.import_module(place) if path is None else _module_of(path)
    except ModuleNotFoundError as error:
        raise InputError(f"{what} {source}: there is no module {error.name!r}; {_FORM}") from error
    except Exception as error:
        raise InputError(f"{what} {source}: {place} fails with {type(error).__name__}: {error}") from error
    found = getattr(module, name, None)
    if found is None:
        raise InputError(f"{what} {source}: {place} has no {name}; {_FORM}")
    return f"{path or place}:{name}", found


def _module_of(path: Path) -> ModuleType:
    """The module of the file, imported once, and again if the file has changed since, as new ranks see it."""
    name, written_ns = f"samovar: {path}", path.stat().st_mtime_ns
    if name not in sys.modules or _written_ns[name] != written_ns:
        _find_in(path.parent)
        specification = spec_from_file_location(name, path)
        assert specification is not None, path
        assert specification.loader is not None, path
        sys.modules[name], _written_ns[name] = module_from_spec(specification), written_ns
        try:
            specification.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _find_in(folder: Path) -> None:
    """Let modules of this folder be imported, after all others."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
