"""Objects in a user's own file: from `MODULE:NAME` or `FILE.py:NAME` to what has that name there."""

import importlib
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from samovar.core.errors import InputError

_FORM = "give MODULE:NAME of a module in the working folder, or FILE.py:NAME"


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


_written_ns: dict[str, int] = {}


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
