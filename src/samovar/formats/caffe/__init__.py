"""Caffe's file formats: prototxt, database records, mean images, weights and solver states."""
