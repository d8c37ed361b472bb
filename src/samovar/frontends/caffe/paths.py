"""Files that a prototxt names: looked up from the working folder, then from the prototxt's own."""

from pathlib import Path

from samovar.core.errors import InputError


def find_named(written: str, prototxt: Path, where: str) -> Path:
    """The file or folder `written` in `prototxt`; `where` ("file:line: field") starts the error's message.

    Raises InputError, naming both places, where neither has it.
    """
    if not written:
        raise InputError(f"{where} is empty; give a path")
    beside = prototxt.parent / written
    for candidate in (Path(written), beside):
        if is_there(candidate):
            return candidate
    places = str(beside) if Path(written).is_absolute() else f"{Path.cwd() / written} and {beside.absolute()}"
    raise InputError(f"{where}: '{written}' does not exist; looked for {places}")


def is_there(path: Path) -> bool:
    """Whether there is a file or folder; False also for a name that no file can have."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False
