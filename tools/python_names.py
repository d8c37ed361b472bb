"""The public names of the package, as docs/reference/python.md lists them."""

import importlib
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs/reference/python.md"
_ITEM = re.compile(r"^- `(samovar(?:\.\w+)+)[`(]", re.MULTILINE)
_PUBLIC = ("samovar", "samovar.box", "samovar.caffe")


def listed(text: str) -> list[str]:
    """The names that begin an item of a list."""
    return _ITEM.findall(text)


def found(name: str) -> object:
    """The object of this name. Raises AttributeError, ImportError."""
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError:
        return getattr(found(module), attribute)


def wrong(text: str) -> list[str]:
    """Public names that are not on the page, and names on it that are not in the code."""
    names = listed(text)
    public = {f"{module}.{name}" for module in _PUBLIC for name in vars(importlib.import_module(module))["__all__"]}
    missing = public - {*names, "samovar.__version__", "samovar.box", "samovar.caffe"}
    return [
        *(f"does not list {name}" for name in sorted(missing)),
        *(f"lists {name}, which is not in the code" for name in names if not _is_found(name)),
        *(f"lists {name} twice" for name in sorted({name for name in names if names.count(name) > 1})),
    ]


def _is_found(name: str) -> bool:
    try:
        return found(name) is not None
    except (AttributeError, ImportError):
        return False
