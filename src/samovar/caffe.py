"""`samovar.caffe`: Caffe nets in a user's own code."""

from samovar.frontends.caffe.layers.registry import register_layer
from samovar.frontends.caffe.module import Net, Outputs, load, save
from samovar.frontends.caffe.onnx_export import export_onnx

__all__ = ["Net", "Outputs", "export_onnx", "load", "register_layer", "save"]
