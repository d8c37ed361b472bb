"""The command line: the composition root, in the launcher and in every rank."""
