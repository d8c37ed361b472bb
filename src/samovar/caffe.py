"""`samovar.caffe`: Caffe nets in a user's own code."""

from samovar.frontends.caffe.layers.registry import register_layer
from samovar.frontends.caffe.loading import load
from samovar.frontends.caffe.module import Net, Outputs
from samovar.frontends.caffe.onnx_export import export_onnx
from samovar.frontends.caffe.saving import save

__all__ = ["Net", "Outputs", "export_onnx", "load", "register_layer", "save"]
