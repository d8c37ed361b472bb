"""One rank of `samovar train`: its parts, its step, its loop, its share of a test."""
