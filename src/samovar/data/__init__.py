"""Batches as a pure function of (seed, step, rank, world size), and converters that make databases."""
