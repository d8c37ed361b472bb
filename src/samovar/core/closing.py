"""The end of a `with` block for things that have a `close`."""

from typing import Self


class Closing:
    """A base class: a `with` block gives the object itself, and closes it at its end."""

    __slots__ = ()

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
