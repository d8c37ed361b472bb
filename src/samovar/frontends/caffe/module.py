"""A Caffe net as an ordinary torch module: loaded from its files, called, and saved."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import nn

from samovar.core.errors import InputError, nearest
from samovar.core.files import write_whole
from samovar.data.order import SAMPLE_NUMBERS
from samovar.formats.caffe.caffemodel import StoredNet
from samovar.frontends.caffe.definition import load_net, sized
from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.layers.registry import UserLayer
from samovar.frontends.caffe.net import CaffeNet, build_net
from samovar.frontends.caffe.spec import PHASES, Phase, Shape, text
from samovar.frontends.caffe.weight_files import SUFFIXES, encode_named, encode_stored, require_finite_layers
from samovar.frontends.caffe.weights import load_weights, stored_layers

_FIRST_SAMPLE_LIMIT = 1 << 40


class Outputs(dict[str, torch.Tensor]):
    """A net's outputs by name, with their graphs; losses as they are printed, before their weights.
    `loss`, on which Caffe trains, is the sum of all losses times their loss_weights, also of those that a layer takes.
    """

    def __init__(self, outputs: Mapping[str, torch.Tensor], loss: torch.Tensor) -> None:
        super().__init__(outputs)
        self.loss = loss


class Net(nn.Module):
    """A Caffe net of one phase: `net(images)`, `net(images, labels)` or `net(data=images, label=labels)`.

    Takes float32 tensors (labels of any kind) in the order of `input_names`, or by name. The first axis is free, the
    others are those of `input_shapes`. Returns `Outputs` (a dict) if the net has a loss, else its one output, else a
    dict of all.

    Children are named like layers, parameters as torch names them ("conv1.weight", "conv1.bias"). BatchNorm's running
    sums are buffers ("bn1.mean", "bn1.variance", "bn1.count"). The phase has chosen the layers. `train()` and `eval()`
    switch Dropout, BatchNorm, stochastic pooling and user layers, except those with a `phase` or `use_global_stats` of
    their own. Random layers draw from torch's generator: `torch.manual_seed` repeats them.
    """

    def __init__(self, net: CaffeNet, input_shapes: Mapping[str, Shape], phase: Phase) -> None:
        super().__init__()
        self.__dict__["caffe_net"] = net  # its layers are children under their own names; once is enough
        self.caffe_net: CaffeNet
        self.input_names = net.input_names
        self.input_shapes = dict(input_shapes)
        self.output_names = net.output_names
        self.phase: Phase = phase
        for index, layer in enumerate(net.layers):
            _adopt(self, layer.spec.name or f"(layer {index})", layer)
            if not layer.is_shared:
                _keep_statistics_as_buffers(layer)
        self.train(phase == "TRAIN")

    def __setattr__(self, name: str, value: Any) -> None:
        """Raises InputError for another module in a layer's place: forward would not use it."""
        if name in self.__dict__.get("_modules", ()) and value is not self._modules[name]:
            advice = "change the layer in the prototxt, or work on the net's outputs"
            raise InputError(f"{self._who()}: its layer '{name}' cannot be replaced by another module; {advice}")
        super().__setattr__(name, value)

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> torch.Tensor | Outputs | dict[str, torch.Tensor]:
        """Raises InputError for a missing or unknown input, and for another shape than that in `input_shapes`."""
        batch = self._bound(inputs, named)
        layers = self.caffe_net.layers
        if any(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks for layer in layers):
            self.caffe_net.separate()  # each hook sees its layer's own values
        if self.caffe_net.is_random:
            first = int(torch.randint(_FIRST_SAMPLE_LIMIT, ()))
            batch[SAMPLE_NUMBERS] = torch.arange(first, first + self.caffe_net.num_samples(batch))
        loss, outputs = self.caffe_net.run(batch)
        if loss is not None:
            return Outputs(outputs, loss)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def train(self, mode: bool = True) -> "Net":
        super().train(mode)
        for layer in self.caffe_net.layers:
            has_own_phase = layer.spec.message.HasField("phase")
            layer.work_as(layer.spec.is_training if has_own_phase else mode)
        return self

    def parameter_groups(self, lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Groups for a torch optimizer: `lr` and `weight_decay` times the layers' lr_mult and decay_mult."""
        groups: dict[tuple[float, float], list[nn.Parameter]] = {}
        for info in self.caffe_net.parameter_infos:
            if info.parameter.requires_grad:
                groups.setdefault((info.lr_mult, info.decay_mult), []).append(info.parameter)
        return [
            {"params": parameters, "lr": lr * lr_mult, "weight_decay": weight_decay * decay_mult}
            for (lr_mult, decay_mult), parameters in groups.items()
        ]

    def extra_repr(self) -> str:
        inputs = ", ".join(f"{name}: {text(shape)}" for name, shape in self.input_shapes.items())
        return f"{self.caffe_net.name or self.caffe_net.path.name}, {self.phase}, ({inputs}) -> {self.output_names}"

    def _bound(self, inputs: tuple[torch.Tensor, ...], named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if len(inputs) > len(self.input_names):
            raise InputError(f"{self._who()}: got {len(inputs)} inputs; it takes {self._wanted()}")
        batch = dict(zip(self.input_names, inputs, strict=False))
        for name, value in named.items():
            if name not in self.input_names:
                raise InputError(f"{self._who()}: has no input '{name}'; {nearest(name, list(self.input_names))}")
            if name in batch:
                raise InputError(f"{self._who()}: input '{name}' is given twice, by position and by name")
            batch[name] = value
        for name in self.input_names:
            self._check(name, batch.get(name))
        return batch

    def _check(self, name: str, value: object) -> None:
        if not isinstance(value, torch.Tensor):
            found = "missing" if value is None else f"a {type(value).__name__}"
            raise InputError(f"{self._who()}: input '{name}' is {found}; it takes tensors {self._wanted()}")
        shape, built = tuple(value.shape), self.input_shapes[name]
        if len(shape) != len(built) or shape[1:] != built[1:]:
            raise InputError(
                f"{self._who()}: input '{name}' has shape {text(shape)}; it was built for {text(built)}. Only the "
                "first size is free. For others load the net with input_shapes"
            )

    def _who(self) -> str:
        return f"net '{self.caffe_net.name}' of {self.caffe_net.path}"

    def _wanted(self) -> str:
        return "(" + ", ".join(f"{name}: {text(self.input_shapes[name])}" for name in self.input_names) + ")"


def _adopt(root: nn.Module, name: str, layer: Layer) -> None:
    """Make `layer` the child `name`; a name with dots ("block.1") leads through children, as torch reads it."""
    *owners, last = name.split(".")
    if "training" in (*owners, last):
        raise layer.spec.error("modules of torch have an attribute 'training' of their own; rename the layer", "name")
    for part in owners:  # torch's own `add_module` would refuse names such as "type"
        child = root._modules.get(part) or nn.Module()
        root._modules[part] = child
        root = child
    before = root._modules.get(last)
    root._modules[last] = layer
    if before is not None:  # only what leads to "NAME.more": that layer came first
        layer._modules.update(before._modules)


def _keep_statistics_as_buffers(layer: Layer) -> None:
    """Make values that forward itself updates buffers of torch: optimizers skip them, replicas average them."""
    for attribute in layer.statistic_names:
        values = layer.get_parameter(attribute).detach()
        delattr(layer, attribute)
        layer.register_buffer(attribute, values)


AnyPath: TypeAlias = str | Path


def load(
    prototxt: AnyPath,
    weights: AnyPath | Sequence[AnyPath] | None = None,
    phase: Phase = "TEST",
    *,
    batch_size: int | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    level: int | None = None,
    stages: Sequence[str] = (),
    seed: int = 0,
) -> Net:
    """The net in `prototxt` in `phase`, with the arrays of `weights`; see `Net` for how to call it.

    `weights` is a .caffemodel (binary or HDF5), .safetensors or torch state_dict (.pt, .pth), or several of them.
    Layers are matched by name, and the last file that has a layer counts. Layers that no file has start from their
    fillers, drawn from `seed`, with a warning.

    `phase` chooses the layers (a TRAIN net has its losses) and sets `.train()` or `.eval()`. Tops of data layers are
    inputs. Their shapes come from `input_shapes` (batch first), else from transform_param, else from the source.
    The batch is `batch_size`, else the file's; the net also runs any other.

    Raises InputError, naming file, line and layer, if something does not fit. No code from a file runs.
    """
    if phase not in PHASES:
        raise InputError(f"phase is {phase!r}; give 'TEST' or 'TRAIN'")
    definition = load_net(Path(prototxt), level, (stages,) if isinstance(stages, str) else stages)
    definition, shapes = sized(definition, phase, input_shapes or {}, batch_size)
    net = Net(build_net(definition, phase, shapes, seed), shapes, phase)
    notices = [*definition.warnings]
    if weights is not None:
        paths = [weights] if isinstance(weights, str | Path) else list(weights)
        notices += load_weights(net.caffe_net, [Path(path) for path in paths], tells_ignored=False)
    for notice in notices:
        warnings.warn(notice, stacklevel=2)
    return net


def save(net: Net, path: AnyPath) -> None:
    """Write the net's weights to `path`, also over an old file: .caffemodel, .caffemodel.h5, .safetensors, .pt or .pth.

    `load` reads them back, Caffe and OpenCV the first two. The file is whole or as it was before. Raises InputError
    for another suffix, for NaN and infinity, and if it cannot be written.
    """
    target = Path(path)
    kind = next((kind for suffix, kind in SUFFIXES.items() if target.name.lower().endswith(suffix)), None)
    if kind is None:
        raise InputError(f"{target}: the suffix is not that of a weights file; give one of {', '.join(SUFFIXES)}")
    for layer in net.caffe_net.layers if "caffemodel" in kind else ():
        if isinstance(layer, UserLayer) and (buffers := list(layer.kept_buffers())):
            reason = f"its module has buffers ({', '.join(buffers)}), which a caffemodel cannot hold"
            warnings.warn(f"{layer.spec.where()}: {reason}; save to .safetensors or .pt to keep them", stacklevel=2)
    stored = stored_of(net)
    require_finite_layers(stored, target)
    if kind in ("safetensors", "pt"):
        content = encode_named({n: v.float().cpu().numpy() for n, v in net.state_dict().items()}, stored, kind)
    else:
        content = encode_stored(stored, kind, target)
    write_whole(target, content)


def stored_of(net: Net) -> StoredNet:
    """The layers as in a caffemodel, float32."""
    infos = net.caffe_net.parameter_infos
    arrays = {info.name: info.parameter.detach().float().cpu().numpy() for info in infos}
    return StoredNet(net.caffe_net.name, stored_layers(net.caffe_net, arrays))
