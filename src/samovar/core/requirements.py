"""Packages that Samovar needs at run time, and what to tell a user who lacks one."""

from dataclasses import dataclass
from importlib.util import find_spec

from samovar.core.errors import InputError

# What pip installs, by the module's name.
_REQUIRED = {
    "torch": "torch",
    "numpy": "numpy",
    "google": "protobuf",
    "lmdb": "lmdb",
    "cryptography": "cryptography",
    "h5py": "h5py",
    "PIL": "pillow",
    "safetensors": "safetensors",
}
_OPTIONAL = {
    "greenlet": "'samovar[simulator]'",
    "matplotlib": "'samovar[simulator]'",
    "sklearn": "'samovar[digits]'",
    "tensorboard": "'samovar[tensorboard]'",
    "wandb": "'samovar[wandb]'",
    "mlflow": "'samovar[mlflow]'",
    "mpi4py": "'samovar[mpi]'",
}
_FOR_TORCH = "; without a GPU, add --index-url https://download.pytorch.org/whl/cpu"


@dataclass(frozen=True, slots=True)
class Missing:
    """A package that is not installed, and the next step of the user."""

    text: str
    next_step: str

    @classmethod
    def of(cls, module: str) -> "Missing":
        """The one that `module` belongs to."""
        package = (_REQUIRED | _OPTIONAL)[module]
        if module == "torch":
            return cls("PyTorch is not installed, and Samovar computes with it", f"run `pip install torch`{_FOR_TORCH}")
        return cls(f"the Python module {module} is not installed", f"run `pip install {package}`")

    def as_error(self) -> InputError:
        """As one sentence."""
        return InputError(f"{self.text}; {self.next_step}")


def missing_modules() -> tuple[str, ...]:
    """The modules that Samovar needs and that are not installed. They are looked for, and not loaded."""
    return tuple(module for module in _REQUIRED if not is_installed(module))


def require_packages() -> None:
    """Raise InputError if a package that Samovar needs is not installed."""
    for module in missing_modules():
        raise Missing.of(module).as_error()


def require_optional(module: str) -> None:
    """Raise InputError if a package that the user has asked for is not installed."""
    if not is_installed(module):
        raise Missing.of(module).as_error()


def explained(error: ModuleNotFoundError) -> InputError | None:
    """The error as a sentence if its module belongs to a package that Samovar needs; None for any other module."""
    module = (error.name or "").partition(".")[0]
    return Missing.of(module).as_error() if module in _REQUIRED | _OPTIONAL else None


def is_installed(module: str) -> bool:
    """Whether the module can be loaded; it is looked for, and not loaded."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
