"""The Soft Memory Box: parameters that workers change together, each at its own speed."""
