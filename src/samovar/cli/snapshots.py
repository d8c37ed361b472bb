"""What a training run saves: Samovar's state, and the same as Caffe's pair of files."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from samovar.checkpoint.store import SnapshotStore
from samovar.config import RunConfig
from samovar.core.stateful import State
from samovar.formats.caffe.caffemodel import LayerRecord, encode_caffemodel
from samovar.formats.caffe.solverstate import SolverState, encode_solverstate
from samovar.frontends.caffe.net import CaffeNet
from samovar.model.model import Model
from samovar.solver.sgd import Sgd


class Saver:
    """Saves a run's state after a step into its snapshot folder."""

    def __init__(self, folder: Path, prefix: str, net: CaffeNet, model: Model, solver: Sgd, config: RunConfig) -> None:
        self._store = SnapshotStore(folder)
        self._prefix = prefix
        self._net = net
        self._model = model
        self._solver = solver
        self._config = config

    def save(self, steps_done: int) -> Path:
        """Write the snapshot of `steps_done`; raises InputError where the disk refuses."""
        weights, momentum = self._model.weights.logical_arrays(), self._solver.history.logical_arrays()
        learned_net = f"{self._prefix}_iter_{steps_done}.caffemodel"
        files = {
            learned_net: encode_caffemodel(self._net.name, _records(self._net, weights)),
            f"{self._prefix}_iter_{steps_done}.solverstate": encode_solverstate(
                SolverState(steps_done, learned_net, [momentum[info.name] for info in self._net.parameter_infos])
            ),
        }
        parts: dict[str, State] = {"weights": {**weights}, "momentum": {**momentum}}
        return self._store.save(steps_done, parts, files, self._config.to_json())


def _records(net: CaffeNet, weights: dict[str, npt.NDArray[np.float32]]) -> list[LayerRecord]:
    return [
        LayerRecord(
            outline.name,
            outline.type,
            outline.bottoms,
            outline.tops,
            [weights[name] for name in outline.parameter_names],
        )
        for outline in net.layers_for_caffemodel()
    ]
