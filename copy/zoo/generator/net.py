"""A net, written down layer by layer: each method adds one and gives the name of its top."""

from collections.abc import Sequence
from typing import Any

from generator.prototxt import TEST, Message, Word, lines_of

Size = int | tuple[int, int]  # one number for both axes, or height and width

WEIGHT_AND_BIAS: tuple[Message, ...] = ({"lr_mult": 1, "decay_mult": 1}, {"lr_mult": 2, "decay_mult": 0})


def gaussian(std: float) -> Message:
    return {"type": "gaussian", "std": std}


def constant(value: float) -> Message:
    return {"type": "constant", "value": value}


XAVIER: Message = {"type": "xavier"}
MSRA: Message = {"type": "msra"}


class Net:
    """The text of a net that trains, or of one that only computes scores (`learns` is False).

    `multipliers` say how fast a layer's parameters learn; they stand only in nets that train.
    """

    def __init__(self, name: str, comment: str, learns: bool, multipliers: Sequence[Message]) -> None:
        self.learns = learns
        self.multipliers = multipliers
        self._parts = [f'{_commented(comment)}name: "{name}"\n\n']

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def comment(self, text: str) -> None:
        """A comment above the next layer."""
        self._parts.append("\n" + _commented(text))

    def layer(self, kind: str, name: str, bottom: Sequence[str], top: Sequence[str], **settings: Any) -> str:
        message = {"name": name, "type": kind, "bottom": bottom, "top": top, **settings}
        message = {field: value for field, value in message.items() if value}
        self._parts.append("\n".join(lines_of("layer", message)) + "\n")
        return top[0]

    def convolution(
        self,
        name: str,
        bottom: str,
        num_output: int,
        kernel: Size,
        *,
        stride: int = 1,
        pad: Size = 0,
        group: int = 1,
        weight: Message,
        bias: Message | None = None,
        bias_term: bool = True,
        multipliers: Sequence[Message] | None = None,
    ) -> str:
        settings: dict[str, Any] = {"num_output": num_output}
        settings |= {} if bias_term else {"bias_term": Word("false")}
        settings |= _sized("kernel", kernel)
        settings |= {"stride": stride} if stride > 1 else {}
        settings |= _sized("pad", pad)
        settings |= {"group": group} if group > 1 else {}
        settings |= _fillers(weight, bias)
        param = self._multipliers(multipliers)[: 2 if bias_term else 1]
        return self.layer("Convolution", name, [bottom], [name], param=param, convolution_param=settings)

    def inner_product(
        self,
        name: str,
        bottom: str,
        num_output: int,
        *,
        weight: Message,
        bias: Message | None = None,
        multipliers: Sequence[Message] | None = None,
    ) -> str:
        settings = {"num_output": num_output} | _fillers(weight, bias)
        param = self._multipliers(multipliers)
        return self.layer("InnerProduct", name, [bottom], [name], param=param, inner_product_param=settings)

    def pool(self, name: str, bottom: str, method: str, kernel: int, stride: int = 1, pad: int = 0) -> str:
        settings: dict[str, Any] = {"pool": Word(method), "kernel_size": kernel}
        settings |= {"stride": stride} if stride > 1 else {}
        settings |= {"pad": pad} if pad else {}
        return self.layer("Pooling", name, [bottom], [name], pooling_param=settings)

    def global_mean(self, name: str, bottom: str) -> str:
        settings = {"pool": Word("AVE"), "global_pooling": Word("true")}
        return self.layer("Pooling", name, [bottom], [name], pooling_param=settings)

    def relu(self, name: str, blob: str) -> str:
        return self.layer("ReLU", name, [blob], [blob])

    def dropout(self, name: str, blob: str, ratio: float) -> str:
        return self.layer("Dropout", name, [blob], [blob], dropout_param={"dropout_ratio": ratio})

    def response_norm(self, name: str, bottom: str, settings: Message) -> str:
        return self.layer("LRN", name, [bottom], [name], lrn_param=settings)

    def concat(self, name: str, bottoms: Sequence[str]) -> str:
        return self.layer("Concat", name, bottoms, [name])

    def add(self, name: str, bottoms: Sequence[str], factors: Sequence[float] = ()) -> str:
        settings = {"operation": Word("SUM"), "coeff": factors}
        return self.layer("Eltwise", name, bottoms, [name], eltwise_param=settings)

    def softmax_loss(self, name: str, scores: str, *, top: str = "", weight: float = 1) -> str:
        loss_weight = weight if weight != 1 else 0
        return self.layer("SoftmaxWithLoss", name, [scores, "label"], [top or name], loss_weight=loss_weight)

    def accuracy(self, name: str, scores: str, top_k: int = 1) -> str:
        settings = {"top_k": top_k} if top_k > 1 else {}
        include = {"phase": TEST}
        bottoms = [scores, "label"]
        return self.layer("Accuracy", name, bottoms, [name], include=include, accuracy_param=settings)

    def _multipliers(self, own: Sequence[Message] | None) -> Sequence[Message]:
        if not self.learns:
            return ()
        return self.multipliers if own is None else own


def _fillers(weight: Message, bias: Message | None) -> dict[str, Any]:
    return {"weight_filler": weight} | ({"bias_filler": bias} if bias else {})


def _sized(name: str, size: Size) -> dict[str, Any]:
    if isinstance(size, int):
        return {"kernel_size" if name == "kernel" else name: size} if size else {}
    return {f"{name}_h": size[0], f"{name}_w": size[1]}


def _commented(text: str) -> str:
    return "".join(f"# {line}\n" for line in text.splitlines())
