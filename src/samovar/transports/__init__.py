"""How bytes move: one module per transport, all behind the protocols of `base`."""
