"""The nets that a solver names: the one it trains, and those it tests, in Caffe's order."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from samovar.core.errors import InputError
from samovar.formats.caffe.schema import Message
from samovar.formats.caffe.text import TextMessage, TextPlace, read_text
from samovar.frontends.caffe.paths import find_named
from samovar.frontends.caffe.solver_checks import FOREIGN_FIELDS
from samovar.frontends.caffe.spec import PHASES, Phase

_TRAIN_FIELDS = ("net", "net_param", "train_net", "train_net_param")


@dataclass(frozen=True, slots=True)
class NetSource:
    """Where a net stands, and the state that the solver gives it.

    `text` is a net that stands in the solver file itself (then `path`), None one in a file of its own. `level` None
    leaves the net's own level; `stages` come beside the net's own. `origin` are Caffe's words for where it stands.
    """

    path: Path
    origin: str
    text: TextMessage | None = None
    level: int | None = None
    stages: tuple[str, ...] = ()

    def name(self) -> str:
        """The net's name, else its file's; raises InputError where the file is no net."""
        text = self.text if self.text is not None else read_text(self.path, "NetParameter", FOREIGN_FIELDS)
        return text.message.name or self.path.stem


@dataclass(frozen=True, slots=True)
class TestNet:
    """A net to test, over `num_batches` batches (Caffe's test_iter)."""

    source: NetSource
    num_batches: int


def train_net(text: TextMessage) -> NetSource:
    """The net to train; InputError unless exactly one is given."""
    given = [field for field in _TRAIN_FIELDS if text.message.HasField(field)]
    if len(given) != 1:
        line = text.places.line_of(given[-1] if given else "net")
        what = f"{' and '.join(given)} are both given" if given else "net and train_net are both missing"
        raise InputError(f"{text.path}:{line}: {what}; give one")
    (source,) = _sources(text, given[0])
    return _with_state(text, source, "TRAIN", "train_state", 0)


def test_nets(text: TextMessage) -> tuple[TestNet, ...]:
    """Those of test_net_param, then those of test_net; `net` once for each test_iter that is left.

    Raises InputError where test_iter or test_state do not come once for each of them.
    """
    solver = text.message
    sources = [*_sources(text, "test_net_param"), *_sources(text, "test_net")]
    counts = list(solver.test_iter)
    generic = next((field for field in ("net", "net_param") if solver.HasField(field)), None)
    if generic is not None:
        sources += list(_sources(text, generic)) * (len(counts) - len(sources))
    if len(sources) != len(counts):
        raise _wrong_count(text, len(sources), len(counts))
    if len(solver.test_state) not in (0, len(sources)):
        raise InputError(
            f"{text.path}:{text.places.line_of('test_state')}: test_state: is given {len(solver.test_state)} times for "
            f"{len(sources)} test nets; give one for each, or none"
        )
    return tuple(
        TestNet(_with_state(text, source, "TEST", "test_state", index), count)
        for index, (source, count) in enumerate(zip(sources, counts, strict=True))
    )


def _wrong_count(text: TextMessage, num_nets: int, num_counts: int) -> InputError:
    field = "test_iter" if num_counts else "test_net" if text.message.test_net else "test_net_param"
    where = f"{text.path}:{text.places.line_of(field)}: {field}: "
    if not num_nets:
        return InputError(f"{where}is given, but train_net has no test net; add test_net, or use net")
    if not num_counts:
        return InputError(f"{where}needs test_iter, the number of test batches; add it")
    return InputError(f"{where}is given {num_counts} times for {num_nets} test nets; give one for each")


def _sources(text: TextMessage, field: str) -> Iterator[NetSource]:
    """The nets of one field of the solver, which may be repeated."""
    value = getattr(text.message, field)
    repeated = field in ("test_net", "test_net_param")
    places = text.places.fields.get(field, [])
    for index, item in enumerate(value if repeated else [value]):
        place = places[index] if index < len(places) else text.places
        if isinstance(item, str):
            path = find_named(item, text.path, f"{text.path}:{place.line}: {field}")
            yield NetSource(path, f"{'test_net' if field == 'test_net' else 'net'} file: {item}")
        else:
            yield NetSource(text.path, field, TextMessage(text.path, item, place))


def _with_state(text: TextMessage, source: NetSource, phase: Phase, field: str, index: int) -> NetSource:
    """`source` in the state that the solver's `field` asks for."""
    state, place = _state(text, field, index)
    if state is None:
        return source
    if state.HasField("phase") and state.phase != PHASES[phase]:
        raise InputError(f"{text.path}:{place.line_of('phase')}: {field}: its phase must be {phase}; leave phase out")
    level = state.level if state.HasField("level") else None
    return NetSource(source.path, source.origin, source.text, level, tuple(state.stage))


def _state(text: TextMessage, field: str, index: int) -> tuple[Message | None, TextPlace]:
    places = text.places.fields.get(field, [])
    place = places[index] if index < len(places) else text.places
    if field == "train_state":
        return (text.message.train_state if text.message.HasField(field) else None), place
    states = text.message.test_state
    return (states[index] if len(states) else None), place
