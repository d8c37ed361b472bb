"""Caffe's solver and net files in: a `CaffeSolver`, and a `CaffeNet` with Caffe's arithmetic."""
