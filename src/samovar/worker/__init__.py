"""One rank: its step, its training loop, its share of a test."""
