"""The reports of a run: records on their way to the launcher, the terminal, the log and the run folder."""
