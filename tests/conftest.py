"""Fixtures of all tests: the leak check, the folders of recorded data, and the slow ones left out."""

import importlib.util
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from tests import loaded
from tests.leak_check import GRACE_S, end_processes, leftovers, mark_descendants, take_stock

ROOT = Path(__file__).parents[1]
_GRACE_HELP = "how long what a test started may take to end after it"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("samovar")
    group.addoption("--run-slow", action="store_true", help="also run tests marked slow")
    group.addoption("--golden", metavar="DIR", help="recorded BVLC Caffe data (default: ../shared/golden)")
    group.addoption("--data-sets", metavar="DIR", help="MNIST and other sets (default: ../shared/data)")
    group.addoption("--gaspi", metavar="DIR", help="where GPI-2 is installed (default: its tests are skipped)")
    group.addoption("--leak-grace", type=float, metavar="SECONDS", default=GRACE_S, help=_GRACE_HELP)


def pytest_configure() -> None:
    mark_descendants()
    # A shell starts what runs in the background with Ctrl-C ignored, and so would everything that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # How long an example takes says how busy the machine is, and nothing of what is tested.
    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--run-slow"):
        return
    skip = pytest.mark.skip(reason="slow: give --run-slow, or run `make test-all`")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def _leak_check_of_all(request: pytest.FixtureRequest) -> Iterator[None]:
    yield from _checked(request, "a fixture of several files leaves behind", outside=True)


@pytest.fixture(scope="session", autouse=True)
def _loaded(_leak_check_of_all: None) -> Iterator[None]:
    """The process from which commands and ranks are forked; it loads its modules when the first is asked for."""
    with loaded.loaded():
        yield


@pytest.fixture(scope="module", autouse=True)
def _leak_check_of_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """The check of each test takes stock after the fixtures of its file."""
    yield from _checked(request, "a fixture of this file leaves behind", outside=True)


@pytest.fixture(autouse=True)
def _leak_check(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that leaves something behind fails."""
    yield from _checked(request, "the test leaves behind")


def _checked(request: pytest.FixtureRequest, said: str, *, outside: bool = False) -> Iterator[None]:
    before = take_stock()
    yield
    left = leftovers(before, request.config.getoption("--leak-grace"), outside=outside)
    if left:
        end_processes(before)
        pytest.fail(f"{said}:\n  " + "\n  ".join(left), pytrace=False)


@pytest.fixture(scope="session", autouse=True)
def _kept_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What runs keep for later ones is not the user's, and none is there at first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def repository_root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def load_tool() -> Callable[[str], ModuleType]:
    """A program of tools/ by its name; each call gives a module of its own."""

    def load(name: str) -> ModuleType:
        specification = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
        assert specification is not None
        assert specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def golden_folder(request: pytest.FixtureRequest) -> Path:
    """The recorded results of BVLC Caffe."""
    return _folder(request.config.getoption("--golden"), "golden", "--golden")


@pytest.fixture(scope="session")
def data_folder(request: pytest.FixtureRequest) -> Path:
    """Published data sets in their published files."""
    return _folder(request.config.getoption("--data-sets"), "data", "--data-sets")


def _folder(given: str | None, name: str, option: str) -> Path:
    if given is not None:
        if not Path(given).is_dir():
            raise pytest.UsageError(f"{option} {given} is not a folder")
        return Path(given).resolve()
    default = ROOT.parent / "shared" / name
    if not default.is_dir():
        pytest.skip(f"needs recorded data: give {option} DIR (see CONTRIBUTING.md)")
    return default


@pytest.fixture
def growing(repository_root: Path) -> str:
    """The example of a strategy of a user's own."""
    return f"{repository_root}/examples/strategy/growing.py:GrowingSgd"


@pytest.fixture
def strategies_as_before(tmp_path: Path) -> Iterator[None]:
    """Strategies, the modules of a test's own, and the path to them are the process's: a test may add to them."""
    from samovar.strategies.traits import KINDS

    kinds, path = dict(KINDS), list(sys.path)
    yield
    KINDS.clear()
    KINDS.update(kinds)
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        place = getattr(module, "__file__", None) or ""
        if name.startswith("samovar: ") or place.startswith(str(tmp_path)):
            del sys.modules[name]
