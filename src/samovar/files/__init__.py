"""Inspect files, and convert them to other forms."""
