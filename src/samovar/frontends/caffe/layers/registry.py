"""Layer types by their names in a prototxt: those of Caffe, and torch modules that a user registers."""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import torch
from torch import nn

from samovar.core.errors import nearest
from samovar.frontends.caffe.layers import (
    activations,
    classification,
    combining,
    convolution,
    ends,
    inner_product,
    losses,
    normalization,
    pooling,
    recurrent,
    shaping,
)
from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.parameters import Filling
from samovar.frontends.caffe.spec import LayerSpec, Shape

ModuleFactory: TypeAlias = Callable[[dict[str, Any], list[Shape]], nn.Module]


class UserLayer(Layer):
    """A module of the user's, made by `factory(settings, bottom_shapes)`.

    `settings` is the JSON object in python_param's param_str, empty without one. The module takes the bottoms and
    returns one tensor, or a tuple of them. Its parameters, in the order of `named_parameters`, are the layer's blobs.
    """

    num_bottoms = (0, 1 << 16)
    num_tops = (0, 1 << 16)
    settings = ("python_param",)
    factory: ClassVar[ModuleFactory]

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        self._aliases: dict[str, list[str]] = {}  # all names that the module has for a parameter, by the first
        digest = hashlib.sha256(f"{self._store.seed} {spec.name}".encode()).digest()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
            self.module = type(self).factory(_settings(spec), list(bottom_shapes))
            if not isinstance(self.module, nn.Module):
                raise TypeError(f"the factory of layer type {spec.type} gave {self.module!r}, not an nn.Module")
            named = list(self.module.named_parameters(remove_duplicate=False))
            for name, parameter in list(self.module.named_parameters()):
                self._aliases[f"module.{name}"] = [f"module.{other}" for other, same in named if same is parameter]
                self.add(f"module.{name}", tuple(parameter.shape), Filling(value=parameter.detach().clone()))
                if not parameter.requires_grad:
                    self.get_parameter(f"module.{name}").requires_grad_(False)
            with torch.no_grad():
                self.module.eval()
                tops = self.forward(*(torch.zeros(shape) for shape in bottom_shapes))
            self.top_shapes = [tuple(top.shape) for top in tops]
        self.module.train(spec.is_training)
        if len(self.top_shapes) != len(spec.tops):
            raise spec.error(
                f"{len(spec.tops)} tops, but the module of type {spec.type} gives {len(self.top_shapes)}", "top"
            )

    def work_as(self, is_training: bool) -> None:
        self.module.train(is_training)

    def kept_buffers(self) -> dict[str, torch.Tensor]:
        """The module's persistent buffers by name. They are not blobs."""
        kept = self.module.state_dict(keep_vars=True)
        return {f"module.{name}": value for name, value in kept.items() if type(value) is torch.Tensor}

    def _set_parameter(self, attribute: str, parameter: nn.Parameter, shape: Shape) -> None:
        for name in self._aliases[attribute]:
            super()._set_parameter(name, parameter, shape)

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
        raise spec.error("param_str must be a JSON object, as in '{\"size\": 3}'", "python_param.param_str")
    return settings


DATA_TYPES = {
    "Data": ("data_param", "transform_param"),
    "HDF5Data": ("hdf5_data_param",),
    "ImageData": ("image_data_param", "transform_param"),
    "WindowData": ("window_data_param", "transform_param"),
}
"""Layers that read files, and the fields with their settings."""
INPUT_TYPES = {"Input": ("input_param",), "MemoryData": ("memory_data_param",)}
"""Layers whose tops the caller of the net provides."""

_MODULES = (
    *(activations, classification, combining, convolution, ends, inner_product, normalization),
    *(losses, pooling, recurrent, shaping),
)
_BASES = ("Classification", "Layer", "RandomLayer")
_LAYERS: dict[str, type[Layer]] = {
    name: kind
    for module in _MODULES
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Layer) and not name.startswith("_") and name not in _BASES
}
"""Every public layer class of these modules, under its own name: Caffe's."""
SUPPORTED = tuple(sorted((*_LAYERS, *DATA_TYPES, *INPUT_TYPES)))
_WAYS_OUT = {
    "LSTMUnit": "is a part of Caffe's own LSTM; write a layer of type LSTM",
    "Python": "runs code that the net names, which Samovar never does. Write the layer as a torch module, and register "
    "it in your program with samovar.caffe.register_layer('{name}', ...). That module is then used for layers of type "
    "Python whose python_param has layer: '{name}'",
}
_OF_CAFFE = frozenset(_WAYS_OUT)
_MAX_SHOWN = 80


def register_layer(name: str, factory: ModuleFactory) -> None:
    """Let prototxts use layers of type `name`; `factory(settings, bottom_shapes)` makes each one's torch module.

    `settings` is a dict, read from the layer's `python_param { param_str: '{"size": 3}' }`; `bottom_shapes` are
    those of the batch the net is built for. The module takes the bottoms and returns its top, or a tuple of tops.
    Layers of type Python whose python_param has `layer: NAME` use the type registered as NAME; their `module` is
    never imported. So a prototxt alone never names code. Raises ValueError for a name of Caffe's own; a name
    registered before gets the new factory.
    """
    known = name in _OF_CAFFE or name in SUPPORTED
    if known or not name:
        raise ValueError(f"layer type {name!r} is Caffe's own; choose another name" if name else "a type needs a name")
    _LAYERS[name] = type(name, (UserLayer,), {"factory": staticmethod(factory)})


def layer_class(spec: LayerSpec) -> type[Layer]:
    """The module class of the layer's type; InputError for a type that is unknown or not supported.
    A layer of type Python is of the type that a program registered under its `python_param { layer: "NAME" }`."""
    name = str(spec.message.python_param.layer) if spec.type == "Python" else spec.type
    kind = _LAYERS.get(name)
    if kind is not None and (spec.type != "Python" or issubclass(kind, UserLayer)):
        return kind
    if spec.type in _OF_CAFFE:
        shown = name if name.isidentifier() and len(name) <= _MAX_SHOWN else "NAME"
        raise spec.error(f"Caffe's layer type {spec.type} {_WAYS_OUT[spec.type].format(name=shown)}", "type")
    raise spec.error(
        f"unknown layer type '{spec.type}'; {nearest(spec.type, [*_LAYERS, *DATA_TYPES, *INPUT_TYPES])}", "type"
    )


def settings_of(spec: LayerSpec) -> tuple[str, ...]:
    """The fields of LayerParameter with settings that a layer of this type reads."""
    found = DATA_TYPES.get(spec.type) or INPUT_TYPES.get(spec.type)
    return found if found is not None else layer_class(spec).settings
