"""Chromium without a window, driven over a pipe by its own protocol: what a page shows, and what it complains of.

Reference: the Chrome DevTools Protocol, with messages that end with a zero byte.
"""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_TIMEOUT_S = 60.0


def browser_path() -> str | None:
    """The first browser that is installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A page. `complaints` are errors in its console, and requests that left the host or failed."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back = to, back
        self._numbers = count(1)
        self._rest = b""
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a method of the protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != number:
            self._note(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def show(self, width: int, scheme: str) -> None:
        """The width of the window, and "light" or "dark"."""
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, address: str) -> None:
        """Go there, and wait until it is loaded."""
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def wait(self, condition: str) -> None:
        """Ask the page until the condition holds."""
        end_s = time.monotonic() + _TIMEOUT_S
        while not self.value(condition):
            assert time.monotonic() < end_s, f"not so within {_TIMEOUT_S:g} s: {condition}"
            select.select([self._back], [], [], 0.05)

    def value(self, expression: str) -> Any:
        """What JavaScript makes of it."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def picture(self, path: Path) -> None:
        """The whole page as a PNG file."""
        made = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(made["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            assert select.select([self._back], [], [], _TIMEOUT_S)[0], "the browser does not answer"
            piece = os.read(self._back, 1 << 20)
            assert piece, "the browser has ended"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(told["exceptionDetails"].get("text", "an exception"))
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(told["args"]))
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.complaints.append(told["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with its files in `folder`, ended with all of its processes."""
    path = browser_path()
    assert path is not None
    to_read, to_write = os.pipe()
    back_read, back_write = os.pipe()
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
    flags += ["--no-first-run", "--disable-dev-shm-usage", f"--user-data-dir={folder}"]
    # It reads descriptor 3 and writes descriptor 4.
    command = ["bash", "-c", f'exec "$0" "$@" 3<&{to_read} 4>&{back_write}', path, *flags, "about:blank"]
    process = subprocess.Popen(
        command,
        pass_fds=(to_read, back_write),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(to_read)
    os.close(back_write)
    try:
        yield Browser(to_write, back_read)
    finally:
        os.close(to_write)  # which ends it
        try:
            process.wait(_TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            os.close(back_read)
