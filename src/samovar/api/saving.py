"""Checkpoints of all ranks of a replica in one file, written while training continues."""

import secrets
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open

from samovar.api.exchanges import Exchange
from samovar.api.figures_wanted import say
from samovar.api.process_group import Announcer, ProcessGroup
from samovar.api.reductions import RankCalls
from samovar.api.state import block_of, from_arrays, part_of, put_together
from samovar.api.uneven_inputs import Event
from samovar.checkpoint.one_file import CheckpointFile, Part, Save
from samovar.collectives.engine import digest_number
from samovar.core.errors import DeadlineExceeded, InputError, SamovarError
from samovar.core.host import boot_id
from samovar.transports.processes import own_mark

_JOIN_S = 0.05
_Made = TypeVar("_Made")


class Writer:
    """Work on a thread of its own, one piece at a time. The interpreter's exit waits for it, and shows its error."""

    def __init__(self, rank: int, timeout_s: float) -> None:
        self._rank, self._timeout_s = rank, timeout_s
        self._thread: threading.Thread | None = None
        self._errors: list[SamovarError] = []
        self._moved_s = 0.0
        weakref.finalize(self, _tell, self._errors)

    def start(self, work: Callable[[Callable[[], None]], None]) -> None:
        """Begin `work(moved)`, which calls `moved()` whenever it gets on. The work before must be settled."""
        self._thread = threading.Thread(target=self._run, args=(work,), name="samovar-save")
        self._moved()
        self._thread.start()

    def settle(self) -> None:
        """Wait for the work under way. Raises its error, once, and DeadlineExceeded if it does not get on."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(_JOIN_S)
            if time.monotonic() - self._moved_s > 2 * self._timeout_s:
                raise DeadlineExceeded(
                    f"rank {self._rank}: save: nothing was written for {2 * self._timeout_s:g} s; is the disk or the "
                    "network of the folder stuck?"
                )
        self._thread = None
        if self._errors:
            raise self._errors.pop()

    def _run(self, work: Callable[[Callable[[], None]], None]) -> None:
        try:
            work(self._moved)
        except SamovarError as error:
            self._errors.append(error)

    def _moved(self) -> None:
        self._moved_s = time.monotonic()


def _tell(errors: Sequence[SamovarError]) -> None:
    for error in errors:  # nobody is left who could ask
        say(str(error))


class Checkpoints(RankCalls):
    """Calls of a replica that save and load the state of all ranks."""

    _exchange: Exchange

    def __init__(self, processes: ProcessGroup, announcer: Announcer) -> None:
        super().__init__(processes, announcer)
        self._all = announcer
        self._writer = Writer(self.rank, announcer.deadline().remaining_s())

    @property
    def step_count(self) -> int:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def save(self, path: str | Path, extra: Any = None, *, wait: bool = True) -> None:
        """Save the state of all ranks in one file, which `load` reads. All ranks call this, and wait for each other.

        The file is a safetensors file with hashes. A file of this name is replaced when the new one is complete, so a
        kill leaves the old one whole. `extra` is this rank's own: numbers, strings, tensors, and lists and dicts of
        these, such as the state of a scheduler. All hosts must share the folder.

        With `wait=False` training continues while the file is written from a copy of the state. The next `save`, `load`
        or `close` waits for it, and raises its error.

        Raises InputError on all ranks if the file cannot be written, and what `state_dict` raises. Cost: the bytes of
        the state, of which tensors that equal those of rank 0 are written once.
        """
        target = Path(path)
        self._meet(target)
        token: str = self.broadcast(secrets.token_hex(8))  # of this save alone
        timeout_s = self._all.deadline().remaining_s()
        saving = Save(target, token, self.rank, self.world_size, timeout_s, self._marks())
        self._together(lambda: self._begin(saving))
        state = self._state_of_all()
        part = self._together(lambda: self._own_part(saving, state, extra))
        self._writer.start(lambda moved: saving.write(part, moved))
        if wait:
            self._together(self._writer.settle)

    def load(self, path: str | Path) -> Any:
        """Load what `save` wrote, and return this rank's `extra`. All ranks call this, and wait for each other.

        A file of another number of ranks P', or of another strategy, gives all ranks the center of saved rank 0, or
        its weights if it has no center. Rank r loads the optimizers' state and the `extra` of saved rank r mod P'.

        Raises InputError on all ranks if the file is missing, damaged or does not fit. Nothing is loaded then.
        """
        self._require_training("load()")
        self._meet_at_center("load()")
        self._together(self._writer.settle)
        loaded = self._together(lambda: read_part(Path(path), self.rank))
        self.load_state_dict(loaded["replica"])
        return loaded["extra"]

    def wait_for_save(self) -> None:
        """Wait until the file of the last save is complete. Raises the error of that save."""
        self._writer.settle()

    def _require_training(self, what: str) -> None:
        raise NotImplementedError

    def _meet_at_center(self, what: str, run: float = 0.0) -> None:
        """At a center, where ranks may be at any step: wait for all, and raise SamovarError if one does not come."""
        self._exchange.meet(what, self.step_count, run)

    def _marks(self) -> list[str]:
        """The marks of the ranks on this host."""
        host = boot_id()
        shown = self.gather([host, own_mark()])
        return [mark if its_host == host else "" for its_host, mark in shown]

    def _begin(self, saving: Save) -> None:
        """Wait until the save before is over."""
        self._writer.settle()
        if self.rank == 0:
            saving.begin()

    def _state_of_all(self) -> dict[str, Any]:
        """This rank's state, from a moment when no rank trains."""
        state = self._together(self.state_dict)
        state["center"] = self._exchange.center()  # all ranks have brought their updates to it by now
        self.barrier()
        return state

    def _own_part(self, saving: Save, state: dict[str, Any], extra: Any) -> Part:
        saving.require_shared()
        return part_of({"replica": state, "extra": from_arrays(extra)})

    def _meet(self, path: Path) -> None:
        """Meet the other ranks at a save to `path`. Raises SamovarError if one has no data left, or trains on."""
        self._require_training("save()")
        self._meet_at_center("save()")
        if ended := self.world_size - self._all.agree(Event.SAVING, 0, digest_number(str(path))):
            raise SamovarError(
                f"save(): rank {self.rank}: the data of {ended} rank(s) has ended, and they wait in their loops; save "
                "after the epoch, or at a step where all ranks have data"
            )

    def _together(self, work: Callable[[], _Made]) -> _Made:
        """The result of `work`, if it failed on no rank. Otherwise raises on all ranks."""
        error: SamovarError | None = None
        try:
            made = work()
        except SamovarError as raised:
            error = raised
        said = self.gather(None if error is None else [isinstance(error, InputError), str(error)])
        if error is not None:
            raise error
        for is_input, text in filter(None, said):
            raise (InputError if is_input else SamovarError)(text)
        return made


def read_part(path: Path, rank: int) -> dict[str, Any]:
    """A rank's part of a checkpoint, every tensor verified."""
    content = CheckpointFile.read(path)
    number = rank % len(content.notes)
    tensors = content.tensors[number]

    def tensor(place: str) -> torch.Tensor:
        key, digest = tensors[place]
        found: torch.Tensor = file.get_tensor(key)
        content.require_intact(key, block_of(found).digest(), digest)
        return found

    try:
        with safe_open(path, "pt") as file:
            read: dict[str, Any] = put_together(content.notes[number], tensor)
    except (OSError, LookupError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        raise InputError(f"load: {path} cannot be read: {error}; use another checkpoint") from error
    return read
