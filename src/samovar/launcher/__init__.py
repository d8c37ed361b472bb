"""The launcher's half of a run: it checks, starts ranks, shows what they tell, and ends them; no torch."""
