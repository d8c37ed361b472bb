"""The traffic of a host's interface while a side computes: its bytes, and the most in any second."""

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

WINDOW_S, _SAMPLE_S = 1.0, 0.02


@dataclass
class Traffic:
    """Of one side so far. `peak_bytes_per_s` is the most that was sent in a window of WINDOW_S."""

    num_bytes: int = 0
    peak_bytes_per_s: float = 0.0


@dataclass
class Meter:
    """Adds what `interface` sends in the `with` block to `traffic`."""

    interface: str
    traffic: Traffic
    _over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._counter = Path(f"/sys/class/net/{self.interface}/statistics/tx_bytes")
        self._thread = threading.Thread(target=self._watch, name="meter", daemon=True)

    def __enter__(self) -> None:
        self._first = self._sent()
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()
        self.traffic.num_bytes += self._sent() - self._first

    def _sent(self) -> int:
        return int(self._counter.read_text())

    def _watch(self) -> None:
        """A side may end within a sample, so the first and the last look count too."""
        seen = deque([(time.monotonic(), self._first)])
        is_over = False
        while not is_over:
            is_over = self._over.wait(_SAMPLE_S)
            seen.append((time.monotonic(), self._sent()))
            while seen[-1][0] - seen[0][0] > WINDOW_S:
                seen.popleft()
            self.traffic.peak_bytes_per_s = max(self.traffic.peak_bytes_per_s, (seen[-1][1] - seen[0][1]) / WINDOW_S)
