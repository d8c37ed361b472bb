"""Strategies in a user's own file: from `MODULE:NAME` or `FILE.py:NAME` to what they declare."""

from samovar.core.errors import InputError
from samovar.core.own_code import object_at
from samovar.strategies.traits import KINDS, Traits, place_of


def declared_as(source: str) -> tuple[str, str]:
    """`source` as every process finds it, in any working folder, and the name that the strategy there declares.

    Imports the module, which runs its code. Raises InputError if there is no such strategy.
    """
    place, kind = object_at(source, "--strategy")
    return place, name_of(kind, source)


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
