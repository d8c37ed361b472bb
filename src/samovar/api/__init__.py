"""The composition root for a user's own training loop: `samovar.replicate`."""
