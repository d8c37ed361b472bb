"""When and what workers exchange, and where the update runs."""

from samovar.strategies import catalog as catalog
