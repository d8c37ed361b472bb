"""Sources and ends of blobs: DummyData, the shapes of Input and MemoryData, HDF5Output."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from samovar.core.errors import InputError
from samovar.core.files import write_file
from samovar.formats.caffe.hdf5 import made_in_memory
from samovar.formats.caffe.schema import Message, message_class
from samovar.frontends.caffe.layers.base import Layer, RandomLayer
from samovar.frontends.caffe.parameters import check_filler, fill_rows
from samovar.frontends.caffe.spec import LayerSpec, Shape, checked

_OLD_SIZES = ("num", "channels", "height", "width")


class DummyData(RandomLayer):
    """Tops of given shapes: constants are made once, other fillers draw in every forward pass.

    One filler for all tops or one for each; without any, zeros. The draws of a row depend on the seed, the layer and
    the row's sample alone. A top with a row for each sample has as many as the present batch, also of a part.
    """

    num_bottoms = (0, 0)
    num_tops = (1, 1 << 16)
    settings = ("dummy_data_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        super().build(spec, bottom_shapes)
        fillers: list[Message] = [*spec.message.dummy_data_param.data_filler] or [message_class("FillerParameter")()]
        where = "dummy_data_param.data_filler"
        self.fillers = spec.one_each(fillers, len(spec.tops), "data_filler", "top", where)
        self.top_shapes = [
            checked(spec, shape, f"top '{t}'") for t, shape in zip(spec.tops, self._shapes(), strict=True)
        ]
        for filler, shape in zip(self.fillers, self.top_shapes, strict=True):
            check_filler(spec, filler, shape, "dummy_data_param", "data_filler")
            if filler.sparse != -1 or filler.variance_norm:  # both need the whole blob
                reason = "data_filler takes no sparse and no variance_norm, because each sample draws by itself"
                raise spec.error(f"{reason}; remove it", where)
        self.constants = [
            torch.full(shape, filler.value) if filler.type == "constant" else None
            for filler, shape in zip(self.fillers, self.top_shapes, strict=True)
        ]
        self.is_random = any(constant is None for constant in self.constants)
        self.register_buffer("_place", torch.empty(0), persistent=False)  # goes where the net goes
        self._place: torch.Tensor

    def _shapes(self) -> list[Shape]:
        """One for each top: from `shape`, or from the four old sizes, each given once or once for each top."""
        settings, num_tops = self.spec.message.dummy_data_param, len(self.spec.tops)
        sizes = [list(getattr(settings, field)) for field in _OLD_SIZES]
        if settings.shape and any(sizes):
            raise self.spec.error(
                "shape and num, channels, height, width are both given; keep shape", "dummy_data_param"
            )
        given = [settings.shape] if settings.shape else sizes
        if any(len(values) not in (1, num_tops) for values in given):
            raise self.spec.error(
                f"sizes do not fit {num_tops} tops; give one shape for all, or one for each top", "dummy_data_param"
            )
        if settings.shape:
            shapes = [tuple(shape.dim) for shape in settings.shape]
        else:
            count = max(map(len, sizes))
            shapes = list(zip(*(values if len(values) == count else values * count for values in sizes), strict=True))
        return shapes * num_tops if len(shapes) == 1 else shapes

    def forward(self) -> tuple[torch.Tensor, ...]:
        whole, present = self.rows
        shapes = [(present, *shape[1:]) if shape[:1] == (whole,) else shape for shape in self.top_shapes]
        return tuple(self._top(index, shape).to(self._place.device) for index, shape in enumerate(shapes))

    def _top(self, index: int, shape: Shape) -> torch.Tensor:
        constant, name = self.constants[index], f"{self.spec.name}/{index}"
        if constant is not None:
            return constant if constant.shape == shape else constant[:1].expand(shape)
        rows = [f"{name} {number}" for number in self.numbers_for(shape).tolist()]
        return fill_rows(self.fillers[index], shape, rows, self.seed)


def input_shapes(spec: LayerSpec) -> list[Shape]:
    """The shapes of the tops of an Input layer: one for all of them, or one for each.
    A MemoryData layer has images (batch_size, channels, height, width) and labels (batch_size,)."""
    if spec.type == "MemoryData":
        return _memory_shapes(spec)
    given = [tuple(shape.dim) for shape in spec.message.input_param.shape]
    shapes = spec.one_each(given, len(spec.tops), "shape", "top", "input_param")
    return [checked(spec, shape, f"input '{top}'") for shape, top in zip(shapes, spec.tops, strict=True)]


def _memory_shapes(spec: LayerSpec) -> list[Shape]:
    settings = spec.message.memory_data_param
    shape = (settings.batch_size, settings.channels, settings.height, settings.width)
    if min(shape) < 1:
        raise spec.error("batch_size, channels, height and width must all be given", "memory_data_param")
    if len(spec.tops) != 2:
        raise spec.error(f"number of tops is {len(spec.tops)}; a MemoryData layer has 2 (images, labels)", "top")
    return [checked(spec, shape, f"input '{spec.tops[0]}'"), shape[:1]]


_NUM_AXES = 4  # Caffe writes every blob with these: (num, channels, height, width)


class HDF5Output(Layer):
    """Takes two blobs; if it `keeps`, `write` can write those of one forward pass afterwards.

    A forward pass alone writes nothing: a net that is loaded and run leaves no file behind. As in Caffe a file holds
    one pass, so a second one raises InputError while the layer keeps.
    """

    takes_integers = True
    num_bottoms = (2, 2)
    num_tops = (0, 0)
    settings = ("hdf5_output_param",)

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        self.top_shapes = []
        self.keeps = False
        self._kept: tuple[npt.NDArray[np.float32], ...] = ()
        if any(len(shape) > _NUM_AXES for shape in bottom_shapes):
            raise spec.error(f"an input has more than {_NUM_AXES} axes; HDF5Output writes {_NUM_AXES}", "bottom")

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.keeps:
            self._kept = tuple(_as_written(bottom) for bottom in bottoms)
        return ()

    def write(self, folder: Path) -> Path | None:
        """Write the kept blobs, datasets "data" and "label", as a new file in `folder`; None without any.
        Raises InputError for a name that leads out of the folder, a file that exists, or a full disk."""
        name = str(self.spec.message.hdf5_output_param.file_name)
        path: Path = folder / name
        if not name or not path.resolve().is_relative_to(folder.resolve()):
            raise self._error(f"'{name}' leads out of {folder}; give a name to write inside of it")
        if not self._kept:
            return None
        content = bytearray()
        with made_in_memory(content) as file:
            for dataset, values in zip(("data", "label"), self._kept, strict=True):
                file.create_dataset(dataset, data=values)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, [bytes(content)])
        except FileExistsError:
            raise self._error(f"{path} exists, and is not replaced; remove it, or write to another folder") from None
        except OSError as error:
            raise self._error(f"{path} cannot be written: {error.strerror}") from error
        return path

    def _error(self, reason: str) -> InputError:
        return self.spec.error(f"file_name: {reason}", "hdf5_output_param.file_name")


def _as_written(bottom: torch.Tensor) -> npt.NDArray[np.float32]:
    values = bottom.detach().float().cpu().numpy()
    return values.reshape(*values.shape, *[1] * (_NUM_AXES - values.ndim)).copy()
