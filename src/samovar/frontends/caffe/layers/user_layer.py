"""Layer types that a user adds: any torch module under a name of its own."""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import torch
from torch import nn

from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.parameters import Filling, ParameterStore
from samovar.frontends.caffe.spec import LayerSpec, Shape

ModuleFactory: TypeAlias = Callable[[dict[str, Any], list[Shape]], nn.Module]


class UserLayer(Layer):
    """A module of the user's, made by `factory(settings, bottom_shapes)`.

    `settings` is the JSON object in python_param's param_str, empty without one. The module takes the bottoms and
    gives one tensor, or a tuple of them; its parameters, in the order of `named_parameters`, are the layer's blobs.
    """

    num_bottoms = (0, 1 << 16)
    num_tops = (0, 1 << 16)
    settings = ("python_param",)
    factory: ClassVar[ModuleFactory]

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        digest = hashlib.sha256(f"{store.seed} {spec.name}".encode()).digest()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            self.module = type(self).factory(_settings(spec), list(bottom_shapes))
            if not isinstance(self.module, nn.Module):
                raise TypeError(f"the factory of layer type {spec.type} gave {self.module!r}, which is no nn.Module")
            for name, parameter in list(self.module.named_parameters()):
                self.add(f"module.{name}", tuple(parameter.shape), Filling(value=parameter.detach().clone()))
            self.top_shapes = self._dry_run(bottom_shapes)
        self.module.train(spec.is_training)
        if len(self.top_shapes) != len(spec.tops):
            raise spec.error(
                f"{len(spec.tops)} tops, but the module of type {spec.type} gives {len(self.top_shapes)}", "top"
            )

    def work_as(self, is_training: bool) -> None:
        self.module.train(is_training)

    @torch.no_grad()
    def _dry_run(self, shapes: Sequence[Shape]) -> list[Shape]:
        self.module.eval()
        return [tuple(top.shape) for top in self.forward(*(torch.zeros(shape) for shape in shapes))]

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tops = self.module(*bottoms)
        return (tops,) if isinstance(tops, torch.Tensor) else tuple(tops)


def _settings(spec: LayerSpec) -> dict[str, Any]:
    text = spec.message.python_param.param_str
    try:
        settings = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise spec.error("param_str must be a JSON object, as in '{\"size\": 3}'", "python_param", "param_str")
    return settings
