"""Files that a list names: found in the folders it is about, and nowhere else."""

from pathlib import Path

from samovar.core.errors import InputError


class ListedFiles:
    """Finds a list's files: in `root`, or without one in the working folder, then in the list's own.

    A path in a list comes from whoever made the list; it may lead nowhere outside of these folders, neither by
    `..`, nor by a symbolic link, nor as an absolute path. With a root, a leading `/` means the root.
    """

    def __init__(self, source: Path, root: Path | None, advice: str) -> None:
        folders = (root,) if root is not None else (Path(), source.parent)
        self._folders = tuple(dict.fromkeys(folder.resolve() for folder in folders))
        self._has_root = root is not None
        self._advice = advice

    def find(self, written: str) -> Path:
        """The file, symbolic links followed; InputError where there is none, or it lies elsewhere."""
        relative = written.lstrip("/") if self._has_root else written
        for folder in self._folders:
            try:
                found = (folder / relative).resolve(strict=True)
            except (OSError, ValueError, RuntimeError):
                continue
            if any(found.is_relative_to(allowed) for allowed in self._folders):
                return found
            raise InputError(f"'{written}' leads to {found}, outside of {self._named()}; {self._advice}")
        raise InputError(f"'{written}' not found in {self._named()}; {self._advice}")

    def _named(self) -> str:
        return " and ".join(map(str, self._folders))
