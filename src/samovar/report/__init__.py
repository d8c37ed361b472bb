"""What a run tells: records on the way to the launcher, the terminal, the log and the run folder."""
