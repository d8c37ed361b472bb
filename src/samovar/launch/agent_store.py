"""Where host 0 of a run is met, told over the store that torchrun's agent keeps: it has the port that all know.

A process of its own loads PyTorch: `python -m samovar.launch.agent_store ADDRESS PORT KEY HOST SECONDS [PLACE]`.
"""

import importlib
import subprocess
import sys

from samovar.core.clock import Deadline
from samovar.core.errors import DeadlineExceeded, SamovarError

_LOADING_S = 60.0  # on a busy machine


def tell_place(address: str, port: int, key: str, place: tuple[str, int], timeout_s: float) -> None:
    """Store where host 0 listens. Raises SamovarError if the store cannot be reached."""
    _ask(address, port, key, 0, timeout_s, f"{place[1]} {place[0]}")


def ask_place(address: str, port: int, key: str, number: int, timeout_s: float) -> tuple[str, int]:
    """Where host 0 listens, when it has told it. Raises SamovarError."""
    found, _, host = _ask(address, port, key, number, timeout_s).partition(" ")
    return host, int(found)


def _ask(address: str, port: int, key: str, number: int, timeout_s: float, *place: str) -> str:
    words = [address, str(port), key, str(number), str(timeout_s), *place]
    command = [sys.executable, "-P", "-m", "samovar.launch.agent_store", *words]
    try:
        said = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s + _LOADING_S,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise DeadlineExceeded(f"the launcher's store at {address}:{port} did not answer in time") from error
    except (OSError, subprocess.CalledProcessError) as error:
        last = (getattr(error, "stderr", None) or str(error)).strip().rpartition("\n")[2]
        raise SamovarError(f"the launcher's store at {address}:{port} does not say where host 0 is: {last}") from error
    return said.stdout.strip()


def main(arguments: list[str]) -> None:
    """Tell the place, or print it."""
    address, port, key, who, timeout_s, *place = arguments
    deadline = Deadline.after(float(timeout_s))
    torch_dist = importlib.import_module("samovar.transports.torch_dist")
    store = torch_dist.open_store(
        address, int(port), serves=False, listen_descriptor=None, who="samovar", deadline=deadline
    )
    rendezvous = store.rendezvous(f"samovar/{key}", "samovar")
    # A script may begin several runs, and each has a place of its own. All hosts count them.
    name = f"host 0 of run {rendezvous.count('runs of ' + who, 1, deadline)}"
    if place:
        rendezvous.tell(name, place[0], deadline)
    elif rendezvous.missing([name], deadline):
        raise SystemExit("host 0 did not come")
    else:
        sys.stdout.write(rendezvous.value(name, deadline))


if __name__ == "__main__":
    main(sys.argv[1:])
