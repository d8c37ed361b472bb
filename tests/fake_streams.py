"""The streams of the fake device: queues of work that run late, in any order that events and collectives allow.

Each rank's thread has one device. Work is done when somebody waits for it, or earlier, as a seeded generator draws.
One lock guards all devices of the process, because work of a collective on one rank ends that of another.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

_CHANGED = threading.Condition(threading.RLock())
_STUCK_S = 30.0
_CHANGES = 0.002  # how often a stream that was fast is slow from then on, for each piece of work
_local = threading.local()
_devices: list["FakeDevice"] = []


def here() -> "FakeDevice":
    """The device of this thread's rank."""
    return _local.device


class Task:
    """Work of a stream; it may begin when `is_ready` says so."""

    def __init__(self, run: Callable[[], object], is_ready: Callable[[], bool] = lambda: True) -> None:
        self.run, self.is_ready, self.is_done = run, is_ready, False


class FakeEvent:
    """As `torch.Event`."""

    def __init__(self, _device: Any = None) -> None:
        self._device = here()
        self._task: Task | None = None

    def record(self, stream: "FakeStream") -> None:
        """Always with its stream: torch's default is one of the current device, which may be another one."""
        self._task = stream.add(lambda: None)

    def query(self) -> bool:
        with _CHANGED:
            return self._task is None or self._task.is_done

    def synchronize(self) -> None:
        if self._task is not None:
            self._device.synchronizations += 1
            self._device.finish(self._task)

    def has_come(self) -> bool:
        return self._task is None or self._task.is_done


class FakeStream:
    """As `torch.Stream`."""

    def __init__(self, device: Any = None) -> None:
        self.owner = device if isinstance(device, FakeDevice) else here()
        self.queue: deque[Task] = deque()
        self.rate = _rate(self.owner.random)
        self._outer: list[FakeStream] = []
        with _CHANGED:
            self.owner.streams.append(self)

    def add(self, run: Callable[[], object], is_ready: Callable[[], bool] = lambda: True) -> Task:
        task = Task(run, is_ready)
        with _CHANGED:
            self.queue.append(task)
            self.owner.go_on()
            _CHANGED.notify_all()
        return task

    def record_event(self, event: FakeEvent | None = None) -> FakeEvent:
        event = event or FakeEvent()
        event.record(self)
        return event

    def wait_event(self, event: FakeEvent) -> None:
        self.add(lambda: None, event.has_come)

    def wait_stream(self, other: "FakeStream") -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def __enter__(self) -> "FakeStream":
        self._outer.append(self.owner.current)
        self.owner.current = self
        return self

    def __exit__(self, *_error: object) -> None:
        self.owner.current = self._outer.pop()


def _rate(random: Random | None) -> float:
    """A stream's speed. So different that work may be late by many steps, and for long."""
    return 1.0 if random is None else 10 ** random.uniform(-4, 4)


class FakeDevice:
    """A rank's device: its streams, and what it counted.

    `bytes_to_host` and `bytes_to_device` went over the bus. `synchronizations` are the waits of the host for the
    device, as `.item()`, a copy that is not from or to pinned memory, or an event's `synchronize` are.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.random = None if seed is None else Random(seed)
        self.bytes_to_host = self.bytes_to_device = self.synchronizations = 0
        self.streams: list[FakeStream] = []
        self.current = FakeStream(self)
        self.pinned: set[int] = set()

    @property
    def is_idle(self) -> bool:
        """Whether work may be done at once, without a queue."""
        return self.random is None and not any(stream.queue for stream in self.streams)

    def counts(self) -> tuple[int, int]:
        """Bytes over the bus, and synchronizations."""
        return self.bytes_to_host + self.bytes_to_device, self.synchronizations

    def synchronize(self) -> None:
        """The host waits for the current stream."""
        self.current.synchronize()

    def go_on(self) -> None:
        """Do some of the work: all that is possible without a generator."""
        if self.random is None:
            while _do_one([self], None):
                continue
        elif self.random.random() < 0.3:
            for _ in range(int(self.random.expovariate(0.1))):
                if not _do_one([self], self.random, may_rest=True):
                    break

    def finish(self, task: Task) -> None:
        """Work until `task` is done, on all ranks' devices if this one's waits for them."""
        with _CHANGED:
            while not task.is_done:
                if _do_one(_devices, self.random):
                    _CHANGED.notify_all()
                elif not _CHANGED.wait(_STUCK_S):
                    raise AssertionError("the fake device waits for work that nobody gives it")


def _do_one(devices: list[FakeDevice], random: Random | None, *, may_rest: bool = False) -> bool:
    """Do the first work of a stream, and say whether there was any. If nobody waits, a slow stream may rest."""
    ready = [stream for device in devices for stream in device.streams if stream.queue and stream.queue[0].is_ready()]
    if may_rest and random is not None:
        ready = [stream for stream in ready if random.random() < stream.rate]
    if not ready:
        return False
    stream = ready[0]
    if random is not None:
        if random.random() < _CHANGES:
            random.choice(ready).rate = _rate(random)
        stream = random.choices(ready, [each.rate for each in ready])[0]
    task = stream.queue.popleft()
    with _disable_current_modes(), torch.no_grad():
        task.run()
    task.is_done = True
    return True


@contextmanager
def on_device(device: FakeDevice) -> Iterator[FakeDevice]:
    """Inside, this thread's rank has that device, and torch's streams and events are its."""
    outer = getattr(_local, "device", None)
    _local.device = device
    with _CHANGED:
        _devices.append(device)
        _patch()
    try:
        yield device
    finally:
        _local.device = outer
        with _CHANGED:
            _devices.remove(device)
            _patch()


_TORCHS = (torch.Stream, torch.Event, torch.accelerator.current_stream)


def _patch() -> None:
    """PyTorch has no way to give a device of Python streams."""
    fakes = (FakeStream, FakeEvent, lambda _device=None: here().current)
    torch.Stream, torch.Event, torch.accelerator.current_stream = fakes if _devices else _TORCHS  # type: ignore[misc, assignment]


class Meetings:
    """Collectives of the ranks of a process, in the order of their start."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._arrived: dict[int, dict[int, torch.Tensor]] = {}
        self._done: set[int] = set()

    def arrive(self, number: int, rank: int, tensor: torch.Tensor, combine: Callable[..., None]) -> bool:
        """Whether collective `number` is over. The last rank to arrive combines the tensors of all."""
        arrived = self._arrived.setdefault(number, {})
        arrived[rank] = tensor
        if len(arrived) == self.world_size and number not in self._done:
            self._done.add(number)
            with _disable_current_modes(), torch.no_grad():
                combine([arrived[rank] for rank in range(self.world_size)])
        return number in self._done


class FakeNccl:
    """A process group on fake devices, whose operations run on a stream of its own, as NCCL's do."""

    def __init__(self, meetings: Meetings, rank: int) -> None:
        self._meetings, self._rank, self._number = meetings, rank, 0
        self._stream = FakeStream()

    def allreduce(self, tensors: list[Any]) -> "FakeWork":
        return self._begin(tensors[0], _sum)

    def broadcast(self, tensor: Any, root: int) -> "FakeWork":
        return self._begin(tensor, partial(_send, root=root))

    def _begin(self, tensor: Any, combine: Callable[..., None]) -> "FakeWork":
        self._stream.wait_stream(self._stream.owner.current)
        there = partial(self._meetings.arrive, self._number, self._rank, tensor.inner, combine)
        self._number += 1
        self._stream.add(lambda: None, there)
        return FakeWork(self._stream.record_event())


class FakeWork:
    """As `torch.distributed.Work`."""

    def __init__(self, event: FakeEvent) -> None:
        self._event = event

    def block_current_stream(self) -> None:
        here().current.wait_event(self._event)

    def is_completed(self) -> bool:
        return self._event.query()


def _sum(tensors: list[torch.Tensor]) -> None:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    _send([total, *tensors], root=0)


def _send(tensors: list[torch.Tensor], root: int) -> None:
    for tensor in tensors:
        tensor.copy_(tensors[root])
