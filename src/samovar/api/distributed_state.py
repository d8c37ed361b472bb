"""A replica's state for `torch.distributed.checkpoint` (DCP), whose checkpoints other tools read and copy."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from samovar.api.replica import Replica
from samovar.api.state import block_of, put_together, taken_apart
from samovar.checkpoint.one_file import keys_of, known_of
from samovar.core.errors import InputError, SamovarError

_MANIFEST = re.compile(r"(?:(?P<name>.+)\.)?rank_(?P<rank>\d+)/manifest")


class DistributedState:
    """The state of all ranks of a replica, as an object that `torch.distributed.checkpoint` saves and loads:

        dcp.save({"replica": DistributedState(replica)}, checkpoint_id=folder)
        dcp.load({"replica": DistributedState(replica, folder)}, checkpoint_id=folder)

    To load, give where it was `saved`: the folder, or the `StorageReader`. `name` is the key under which it was saved.
    You need it only if a checkpoint has several replicas.

    All ranks make the same calls. DCP needs the default process group to save from several ranks. It loads with or
    without one, and with any number of ranks: as `Replica.load` does. The state is in tensors only, each with a hash. A
    tensor that equals that of rank 0 is saved once.

    DCP's own file `.metadata` is a pickle, so load only folders that you trust.
    """

    def __init__(
        self, replica: Replica, saved: str | Path | dcp.StorageReader | None = None, name: str | None = None
    ) -> None:
        self._replica, self._name = replica, name
        self._reader = dcp.FileSystemReader(saved) if isinstance(saved, str | Path) else saved
        self._manifest: dict[str, Any] = {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """To save: this rank's tensors. To load: tensors of the saved shapes, for DCP to fill.

        Raises SamovarError if DCP sees no process group of all ranks, and InputError if nothing was saved there.
        """
        return self._own() if self._reader is None else self._replica._together(self._template)

    def load_state_dict(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Give the replica what DCP has loaded. Raises InputError on all ranks if it is damaged or does not fit."""
        self._replica.load_state_dict(self._replica._together(lambda: self._verified(state_dict)))

    def _own(self) -> dict[str, torch.Tensor]:
        replica = self._replica
        _require_group(replica)
        replica._meet(Path("torch.distributed.checkpoint"))
        state = replica._state_of_all()
        tree, tensors = replica._together(lambda: taken_apart(state))
        digests = {place: block_of(tensor).digest() for place, tensor in tensors.items()}
        keys, prefix = keys_of(digests, replica.broadcast(known_of(digests)), replica.rank), f"rank_{replica.rank}/"
        own = {key: tensors[place] for place, (key, _) in keys.items() if key.startswith(prefix)}
        return {f"{prefix}manifest": _text({"note": tree, "tensors": keys}), **own}

    def _template(self) -> dict[str, torch.Tensor]:
        assert self._reader is not None
        try:
            metadata = self._reader.read_metadata()
        except OSError as error:
            raise InputError(
                f"load: {error.filename}: {error.strerror}; give the folder in which torch.distributed.checkpoint saved"
            ) from error
        name, number = self._choice(metadata)
        prefix = f"{name}." if name else ""
        found = {f"{prefix}rank_{number}/manifest": _empty(metadata, f"{prefix}rank_{number}/manifest")}
        dcp.load(found, storage_reader=self._reader, no_dist=True)
        (text,) = found.values()
        self._manifest = json.loads(text.numpy().tobytes())
        keys = [key for key, _ in self._manifest["tensors"].values()]
        return {key: _empty(metadata, prefix + key) for key in keys}

    def _choice(self, metadata: Metadata) -> tuple[str, int]:
        """The key under which the replica was saved, and the saved rank for this rank."""
        places = [match for key in metadata.state_dict_metadata if (match := _MANIFEST.fullmatch(key))]
        names = sorted({match["name"] or "" for match in places})
        chosen = names if self._name is None else [name for name in names if name == self._name]
        if len(chosen) != 1:
            there = ", ".join(map(repr, names)) or "none"
            raise InputError(
                f"load: got name={self._name!r}, and the checkpoint has these replicas: {there}; give one of them"
            )
        ranks = sorted(int(match["rank"]) for match in places if (match["name"] or "") == chosen[0])
        return chosen[0], ranks[self._replica.rank % len(ranks)]

    def _verified(self, loaded: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        for key, digest in self._manifest["tensors"].values():
            if block_of(loaded[key]).digest() != digest:
                raise InputError(f"load: tensor {key!r} is damaged: its sha256 differs; use another checkpoint")
        places = self._manifest["tensors"]
        state: dict[str, Any] = put_together(self._manifest["note"], lambda place: loaded[places[place][0]])
        return state


def _require_group(replica: Replica) -> None:
    """Raises SamovarError if DCP would take each rank for the only one."""
    is_open = torch.distributed.is_available() and torch.distributed.is_initialized()
    size = torch.distributed.get_world_size() if is_open else 1
    if size != replica.world_size:
        what = f"a process group of {size}" if is_open else "no process group"
        raise SamovarError(
            f"rank {replica.rank}: save: torch.distributed.checkpoint sees {what}, and the replica has "
            f"{replica.world_size} ranks, which would overwrite each other's files; call "
            "torch.distributed.init_process_group('gloo') first, or use replica.save(path)"
        )


def _text(manifest: Any) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(json.dumps(manifest).encode(), np.uint8).copy())


def _empty(metadata: Metadata, key: str) -> torch.Tensor:
    found = metadata.state_dict_metadata.get(key)
    if not isinstance(found, TensorStorageMetadata):
        raise InputError(f"load: the checkpoint has no tensor {key!r}; use another checkpoint")
    return torch.empty(found.size, dtype=found.properties.dtype)
