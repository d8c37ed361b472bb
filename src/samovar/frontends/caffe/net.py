"""A net of one phase as a torch module with Caffe's arithmetic."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import nn

from samovar.core.errors import InputError
from samovar.data.order import SAMPLE_NUMBERS
from samovar.frontends.caffe.definition import CaffeNetDefinition
from samovar.frontends.caffe.layers.base import Layer, RandomLayer, on_device
from samovar.frontends.caffe.parameters import Footprint, ParameterInfo, Room
from samovar.frontends.caffe.spec import Phase, Shape, text
from samovar.frontends.caffe.wiring import LayerOutline, Step, Wiring, planned, separate_rectifiers
from samovar.model.half import NetOutput


class Watch(Protocol):
    """Sees the bottoms and tops of each step of a net (by its number), and may replace them by equal values."""

    def begin(self, blobs: Mapping[str, torch.Tensor]) -> None: ...
    def taken(self, number: int, bottoms: list[torch.Tensor]) -> list[torch.Tensor]: ...
    def given(self, number: int, step: Step, tops: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]: ...
    def ended(self) -> None: ...


class CaffeNet(nn.Module):
    """Runs its layers in file order over named blobs.

    A batch must hold the blobs `input_names`. No layer takes the blobs `output_names`, in Caffe's (alphabetical)
    order; `output_shapes` are their shapes for the batch that the net is built for. `parameter_infos` are the
    parameters and `steps` every layer's turn, both in file order. Any batch size may run; it is built for
    `batch_size`. It computes on `device` after `place`; None: where its parameters and its batches are.
    """

    def __init__(self, definition: CaffeNetDefinition, wiring: Wiring) -> None:
        super().__init__()
        self.name = definition.name
        self.path = definition.path
        self.input_names = tuple(wiring.input_names)
        self.input_shapes = dict(wiring.input_shapes)
        self.output_shapes = wiring.output_shapes()
        self.output_names = tuple(self.output_shapes)
        self._infos = wiring.store.infos()
        self.steps = planned(wiring.finish(), wiring.input_shapes, self.output_names)
        self._outlines = tuple(wiring.outlines)
        self.layer_modules = nn.ModuleList(step.layer for step in self.steps)
        self._random_layers = [layer for layer in self.layers if isinstance(layer, RandomLayer)]
        made = [shape for layer in self._random_layers if not layer.spec.bottoms for shape in layer.top_shapes]
        self._makes_samples = bool(made)
        self.batch_size = next((shape[0] for shape in (*wiring.input_shapes.values(), *made) if shape), 1)
        self._num_samples_seen = 0
        self._watch: Watch | None = None
        self.device: torch.device | None = None

    def forward(self, batch: Mapping[str, torch.Tensor]) -> NetOutput:
        """Loss and outputs of a batch: blobs by name, images float32 (N, C, H, W), labels (N).

        Random layers draw by the batch's sample numbers (`SAMPLE_NUMBERS`, int64 (N,)); without them the net
        numbers the samples it has seen.
        """
        loss, outputs = self.run(batch)
        return NetOutput(loss, {name: value.detach() for name, value in outputs.items()})

    def run(self, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor | None, dict[str, torch.Tensor]]:
        """As `forward`: the weighted loss, and the outputs by name with their graphs."""
        if self._makes_samples or self.is_random:
            self._number_samples(batch)
        blobs = self.inputs(batch)
        if self._watch is not None:
            self._watch.begin(blobs)
        loss: torch.Tensor | None = None
        for number, step in enumerate(self.steps):
            for name in step.channels_last:
                blobs[name] = blobs[name].contiguous(memory_format=torch.channels_last)
            try:
                tops = self._tops(number, step, _bottoms(step, blobs))
            except RuntimeError as error:
                self._refuse_another_size(step, self.num_samples(batch), error)
                raise
            blobs.update(zip(step.tops, tops, strict=True))
            for name, weight in step.loss_weights:
                value = blobs[name] if blobs[name].dim() == 0 else blobs[name].sum()
                value = value.detach() if name in step.detached_losses else value
                term = value if weight == 1 else value * weight
                loss = term if loss is None else loss + term
            for name in step.last_uses:
                del blobs[name]
        if self._watch is not None:
            self._watch.ended()
        outputs = {name: blobs[name] for name in self.output_names}
        return loss, {n: blob.float() if blob.dtype == torch.bfloat16 else blob for n, blob in outputs.items()}

    def inputs(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The batch's blobs, on the net's device."""
        given = {name: batch[name] for name in self.input_names}
        return given if self.device is None else {name: on_device(blob, self.device) for name, blob in given.items()}

    def place(self, device: torch.device | None) -> None:
        """Compute there from now on; parameters that are on that device stay the same objects."""
        self.device = device
        if device is not None:
            self.to(device)

    def be_watched(self, watch: Watch) -> None:
        """From now on `watch` sees every blob."""
        self.separate()
        self._watch = watch

    def separate(self) -> None:
        """From now on no layer does another's work, and none overwrites its bottom."""
        separate_rectifiers(self.steps)
        for layer in self.layers:
            layer.overwrites_bottom = False

    def _tops(self, number: int, step: Step, bottoms: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        if self._watch is None:
            return step.layer.tops(*bottoms)
        return self._watch.given(number, step, step.layer.tops(*self._watch.taken(number, bottoms)))

    def num_samples(self, batch: Mapping[str, torch.Tensor]) -> int:
        """By the batch's sample numbers, else by its first blob that has an axis."""
        counted = (SAMPLE_NUMBERS, *self.input_names)
        return next((len(batch[name]) for name in counted if name in batch and batch[name].dim()), self.batch_size)

    def _refuse_another_size(self, step: Step, num_samples: int, error: RuntimeError) -> None:
        """Raise InputError for a batch of another size than the net was built for."""
        if num_samples != self.batch_size:
            built = f"a batch of {num_samples} samples does not pass, the net is built for {self.batch_size}: {error}"
            advice = "write 0 or -1 where a shape counts samples, or give each worker a whole batch"
            raise step.layer.spec.error(f"{built}; {advice}") from error

    def _number_samples(self, batch: Mapping[str, torch.Tensor]) -> None:
        numbers = batch.get(SAMPLE_NUMBERS)
        if numbers is None:
            first, count = self._num_samples_seen, self.num_samples(batch)
            self._num_samples_seen += count
            numbers = torch.arange(first, first + count)
        for layer in self._random_layers:
            layer.sample_numbers, layer.rows = numbers, (self.batch_size, len(numbers))

    def forget(self) -> bool:
        """Drop the states that layers carry from pass to pass; whether any layer carries some."""
        carrying = [layer for layer in self.layers if layer.carried is not None]
        for layer in carrying:
            layer.carried = []
        return bool(carrying)

    @property
    def parameter_infos(self) -> tuple[ParameterInfo, ...]:
        """The parameters in file order, as the layers hold them now: torch may have replaced them."""
        held = {layer.spec.name: layer.caffe_parameters() for layer in self.layers}
        return tuple(replace(info, parameter=held[info.layer][info.index]) for info in self._infos)

    @property
    def is_random(self) -> bool:
        """Whether any layer draws, as the net works now."""
        return any(layer.is_random for layer in self._random_layers)

    @property
    def loss_weights(self) -> dict[str, float]:
        """The blobs that count as loss, by name."""
        return {name: weight for step in self.steps for name, weight in step.loss_weights}

    @property
    def mixing_layers(self) -> tuple[str, ...]:
        """Layers, "name (Type)", in which samples of a batch affect each other, and `uneven_losses`."""
        return (*_shown(layer for layer in self.layers if layer.mixes_samples), *self.uneven_losses)

    @property
    def uneven_losses(self) -> tuple[str, ...]:
        """Layers whose loss is not a mean over samples: the losses of a batch's parts do not make up the batch's."""
        losses = (step.layer for step in self.steps if step.loss_weights)
        return _shown(layer for layer in losses if layer.is_uneven or not layer.default_loss_weight)

    @property
    def layers(self) -> tuple[Layer, ...]:
        return tuple(step.layer for step in self.steps)

    def layers_for_caffemodel(self) -> tuple[LayerOutline, ...]:
        """All layers in file order, with the names of their parameters (those of the owner where shared)."""
        return self._outlines

    def share_parameters(self, other: "CaffeNet") -> None:
        """Use the parameters of `other`'s layers of the same names themselves; other layers keep their own.
        Raises InputError if a layer's parameters have other shapes there."""
        sources = {layer.spec.name: layer for layer in other.layers}
        for layer in self.layers:
            source = sources.get(layer.spec.name)
            if source is not None and layer.attribute_names and source.attribute_names:
                self._check_same(layer, source)
                layer.use_parameters(source.caffe_parameters())

    def _check_same(self, layer: Layer, source: Layer) -> None:
        ours, theirs = layer.parameter_shapes, source.parameter_shapes
        if ours != theirs:
            raise InputError(
                f"{self.path}: layer '{layer.spec.name}' has parameters {', '.join(map(text, ours))}, but "
                f"{', '.join(map(text, theirs))} in the net that shares them; the phases must agree"
            )


def build_net(
    definition: CaffeNetDefinition, phase: Phase, data_shapes: Mapping[str, Shape], seed: int, room: Room | None = None
) -> CaffeNet:
    """The net of `phase`, weights drawn by its fillers from `seed`.

    `data_shapes` has the shape of each top of the Data layer, batch size first. `room` counts the processes that share
    the memory (default: this one). Raises InputError with file, line and layer if parts of the net do not fit
    together, or if the net does not fit into the free memory.
    """
    wiring = Wiring(data_shapes, seed, Footprint(phase, room or Room()))
    for spec in definition.in_phase(phase):
        wiring.add(spec)
    return CaffeNet(definition, wiring)


def _shown(layers: Iterable[Layer]) -> tuple[str, ...]:
    return tuple(f"{layer.spec.name} ({layer.spec.type})" for layer in layers)


def _bottoms(step: Step, blobs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    bottoms = [step.layer.taken(blobs[name]) for name in step.bottoms]
    if any(step.detached):
        bottoms = [b.detach() if stop else b for b, stop in zip(bottoms, step.detached, strict=True)]
    return bottoms
