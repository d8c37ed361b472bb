"""`samovar.replicate`: training loops of users on several ranks."""
