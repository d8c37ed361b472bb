"""Samovar: train deep networks on several workers and choose how they share what they learn."""

__version__ = "0.1.0"
