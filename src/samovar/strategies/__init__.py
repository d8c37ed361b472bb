"""When and what workers exchange, and where the update runs."""
