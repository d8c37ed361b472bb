"""Event files for TensorBoard."""

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from samovar.report.sinks import Sink, scalars


class TensorBoard(Sink):
    """Scalars in `folder`, which `tensorboard --logdir` shows. A thread writes them."""

    def __init__(self, folder: str | Path) -> None:
        self._writer = EventFileWriter(str(folder))

    def write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        found = [Summary.Value(tag=name, simple_value=value) for name, value in scalars(kind, values)]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=found)))

    def close(self) -> None:
        self._writer.close()
