"""The CUDA devices that PyTorch finds, and a rank's own.

The launcher, which does not load PyTorch, runs it as a program: `python -m samovar.model.device [DEVICE]`.
"""

import json
import sys

import torch

from samovar import _native
from samovar.core.device import CPU, CUDA, NEAR_CPU, STAGED_CPU
from samovar.core.errors import InputError


def count_devices() -> int:
    """The number of CUDA devices that this process may use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def described() -> str:
    """The names of all devices."""
    if not (count := count_devices()):
        return f"cpu; no CUDA device ({_why()})"
    return ", ".join(["cpu", *(f"{CUDA}:{number} {torch.cuda.get_device_name(number)}" for number in range(count))])


def require(device: str) -> None:
    """Raise InputError unless the CUDA device `device`, "cuda" or "cuda:N", exists."""
    count = count_devices()
    if not count:
        raise InputError(f"--device {device}: there is no CUDA device ({_why()}); give --device cpu")
    _, colon, number = device.partition(":")
    if colon and int(number) >= count:
        raise InputError(
            f"--device {device}: this machine has {count} CUDA devices, the last is {CUDA}:{count - 1}; give one"
        )


def _why() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return f"PyTorch {torch.__version__} is built without CUDA"
    return f"PyTorch {torch.__version__} finds none; is the driver loaded, and CUDA_VISIBLE_DEVICES not empty?"


def answer(device: str | None = None) -> dict[str, int | str]:
    """The number of CUDA devices, their names, and why `device` cannot be used ("" if it can)."""
    refusal = ""
    try:
        if device is not None:
            require(device)
    except InputError as error:
        refusal = str(error)
    return {"count": count_devices(), "described": described(), "refusal": refusal}


def use_device(device: str, rank: int) -> torch.device | None:
    """Choose the device of rank `rank` of this host. None means the CPU, in the memory that ranks share.

    On CUDA it takes device `rank` modulo their number, unless one is named. It turns TF32 off, and PyTorch's
    deterministic kernels on.
    """
    if device == CPU:
        return None
    if device in (STAGED_CPU, NEAR_CPU):
        return torch.device(CPU)
    require(device)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    own = torch.device(device if ":" in device else f"{CUDA}:{device_of(rank, count_devices())}")
    torch.cuda.set_device(own)
    return own


def device_of(rank: int, num_devices: int) -> int:
    """The device of a rank of this host. Ranks take devices in turn."""
    return rank % num_devices


def computed(device: torch.device | None) -> None:
    """Wait until the device has finished its work."""
    if device is not None and device.type == CUDA:
        torch.cuda.synchronize(device)


def device_notices(device: torch.device | None, workers: int, name: str) -> tuple[str, ...]:
    """Notices about computing on `device`; `name` is the value of --device."""
    if device is None or device.type != CUDA:
        return ()
    count = 1 if ":" in name else count_devices()
    shared = f"; {workers} workers share {count}" if workers > count else ""
    untried = "; several GPUs have never run this" if min(workers, count) > 1 else ""
    return (f"computing on {device} ({torch.cuda.get_device_name(device)}){shared}{untried}",)


def main(arguments: list[str]) -> None:
    """Print the answer."""
    _native.die_with_parent()
    sys.stdout.write(json.dumps(answer(*arguments)))


if __name__ == "__main__":
    main(sys.argv[1:])
