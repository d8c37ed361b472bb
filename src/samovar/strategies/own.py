"""Strategies in a user's own file: from `MODULE:NAME` or `FILE.py:NAME` to what they declare."""

import importlib
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from samovar.core.errors import InputError
from samovar.strategies.traits import KINDS, Traits, place_of

_FORM = "give MODULE:NAME of a module in the working folder, or FILE.py:NAME"


def declared_as(source: str) -> tuple[str, str]:
    """`source` as every process finds it, in any working folder, and the name that the strategy there declares.

    Imports the module, which runs its code. Raises InputError if there is no such strategy.
    """
    place, _, name = source.rpartition(":")
    if not place or not name.isidentifier():
        raise InputError(f"--strategy {source}: {_FORM}")
    path = Path(place).resolve() if place.endswith(".py") else None
    if path is not None and not path.is_file():
        raise InputError(f"--strategy {source}: no such file: {place}; {_FORM}")
    try:
        module = _module_named(place) if path is None else _module_of(path)
    except ModuleNotFoundError as error:
        raise InputError(f"--strategy {source}: there is no module {error.name!r}; {_FORM}") from error
    except Exception as error:
        raise InputError(f"--strategy {source}: {place} fails with {type(error).__name__}: {error}") from error
    kind = getattr(module, name, None)
    if kind is None:
        raise InputError(f"--strategy {source}: {place} has no {name}; {_FORM}")
    return f"{path or place}:{name}", name_of(kind, source)


def name_of(kind: object, source: str = "") -> str:
    """The name that this class declares. Raises InputError if it is not a strategy."""
    traits = vars(kind).get("traits") if isinstance(kind, type) else None
    known = KINDS.get(traits.name) if isinstance(traits, Traits) else None
    if not isinstance(kind, type) or known is None or place_of(known) != place_of(kind):
        raise InputError(
            f"--strategy {source or kind}: is not a strategy; decorate a class of samovar.strategies by "
            '@samovar.strategy("its-name")'
        )
    return known.traits.name


def _module_named(name: str) -> ModuleType:
    """A module of the working folder, if no other has its name."""
    _find_in(Path.cwd())
    return importlib.import_module(name)


def _module_of(path: Path) -> ModuleType:
    """The module of the file, imported once."""
    name = f"samovar strategy {path}"
    if name not in sys.modules:
        _find_in(path.parent)
        specification = spec_from_file_location(name, path)
        assert specification is not None, path
        assert specification.loader is not None, path
        sys.modules[name] = module_from_spec(specification)
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
