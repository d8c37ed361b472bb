"""A net of the zoo as its three files: what it trains on, its layers, how it is trained."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from generator.net import WEIGHT_AND_BIAS, Net
from generator.prototxt import TEST, TRAIN, Message, Word, lines_of

SolverLine = tuple[str, object] | tuple[str, object, str]  # field, value, and where wanted a comment


@dataclass(frozen=True)
class Images:
    """A database, how many of its images make a batch, and what is done to each."""

    source: str
    batch_size: int
    transform: Message


@dataclass(frozen=True)
class Model:
    """`body` adds the layers between images and class scores; `solvers` are the solver files by name.

    `about` says where the architecture comes from and stands at the top of both nets. `top_ks` are the
    accuracies that a test tells.
    """

    name: str
    about: str
    image_shape: tuple[int, int, int]
    train: Images
    test: Images
    body: Callable[[Net, str], str]
    solvers: Mapping[str, tuple[str, Sequence[SolverLine]]]
    top_ks: Sequence[int] = (1, 5)
    multipliers: Sequence[Message] = field(default=WEIGHT_AND_BIAS)
    loss_name: str = "loss"

    def files(self) -> dict[str, str]:
        """Text by file name."""
        nets = {"train_val.prototxt": self._train_val(), "deploy.prototxt": self._deploy()}
        return nets | {f"{name}.prototxt": _solver_text(*solver) for name, solver in self.solvers.items()}

    def _train_val(self) -> str:
        net = Net(self.name, f"{self.about}\n{_PATHS}", learns=True, multipliers=self.multipliers)
        for name, phase, images in (("train", TRAIN, self.train), ("test", TEST, self.test)):
            source = {"source": images.source, "backend": Word("LMDB"), "batch_size": images.batch_size}
            settings = {"include": {"phase": phase}, "transform_param": images.transform, "data_param": source}
            net.layer("Data", name, [], ["data", "label"], **settings)
        scores = self.body(net, "data")
        for top_k in self.top_ks:
            net.accuracy("accuracy" if top_k == 1 else f"accuracy_top{top_k}", scores, top_k)
        net.softmax_loss(self.loss_name, scores)
        return net.text

    def _deploy(self) -> str:
        net = Net(self.name, f"{self.about}\n{_DEPLOY}", learns=False, multipliers=())
        net.layer("Input", "data", [], ["data"], input_param={"shape": {"dim": [1, *self.image_shape]}})
        scores = self.body(net, "data")
        net.layer("Softmax", "prob", [scores], ["prob"])
        return net.text


_PATHS = "Paths are relative to the folder you run in (or to this file's folder)."
_DEPLOY = "Takes prepared images, gives class probabilities."


def _solver_text(about: str, lines: Sequence[SolverLine]) -> str:
    text = "".join(f"# {line}\n" for line in about.splitlines())
    for name, value, *comment in lines:
        (line, *rest) = lines_of(name, value)
        text += line + (f"  # {comment[0]}" if comment else "") + "\n"
        text += "".join(f"{more}\n" for more in rest)
    return text
