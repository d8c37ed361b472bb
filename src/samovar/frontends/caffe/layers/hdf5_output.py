"""HDF5Output: two blobs of one forward pass, for a file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from samovar.core.durable import write_file
from samovar.core.errors import InputError
from samovar.formats.caffe.hdf5 import made_in_memory
from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.parameters import ParameterStore
from samovar.frontends.caffe.spec import LayerSpec, Shape

_NUM_AXES = 4  # Caffe writes every blob with these: (num, channels, height, width)


class HDF5Output(Layer):
    """Takes two blobs; where it `keeps`, those of one forward pass are there for `write` afterwards.

    A forward pass alone writes nothing: a net that is loaded and run leaves no file behind. As in Caffe a file holds
    one pass, so a second one raises InputError while the layer keeps.
    """

    takes_integers = True
    num_bottoms = (2, 2)
    num_tops = (0, 0)
    settings = ("hdf5_output_param",)

    def __init__(self, spec: LayerSpec, bottom_shapes: Sequence[Shape], store: ParameterStore) -> None:
        super().__init__(spec, bottom_shapes, store)
        self.top_shapes = []
        self.keeps = False
        self._kept: tuple[npt.NDArray[np.float32], ...] = ()
        if any(len(shape) > _NUM_AXES for shape in bottom_shapes):
            raise spec.error(f"an input has more than {_NUM_AXES} axes; HDF5Output writes {_NUM_AXES}", "bottom")

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.keeps:
            if self._kept:
                raise self.spec.error("HDF5Output writes one forward pass; test with --iterations 1", "type")
            self._kept = tuple(_as_written(bottom) for bottom in bottoms)
        return ()

    def write(self, folder: Path) -> Path | None:
        """Write what was kept, datasets "data" and "label", as a new file in `folder`; None where nothing was.

        Raises InputError for a name that leads out of the folder, a file that exists, or a full disk.
        """
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
        return self.spec.error(f"file_name: {reason}", "hdf5_output_param", "file_name")


def _as_written(bottom: torch.Tensor) -> npt.NDArray[np.float32]:
    values = bottom.detach().float().cpu().numpy()
    return values.reshape(*values.shape, *[1] * (_NUM_AXES - values.ndim)).copy()
