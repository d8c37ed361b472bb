"""Caffe's layer types as torch modules."""
