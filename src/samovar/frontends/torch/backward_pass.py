"""One backward pass of a user's loss, before it is made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from samovar.core.layout import Bucket


@dataclass(frozen=True, slots=True)
class BackwardPass:
    """`loss.backward(gradient, retain_graph, inputs=inputs)`, when it is run.

    `inputs` are the leaves whose gradients are made; None for all. Each of `others`, and then of `around`, runs the
    rest inside its own pass. `before_final` is called before a bucket counts as final.
    """

    loss: torch.Tensor
    gradient: torch.Tensor | None = None
    retain_graph: bool | None = None
    inputs: tuple[torch.Tensor, ...] | None = None
    others: "tuple[Callable[[BackwardPass], None], ...]" = ()
    around: "tuple[Callable[[BackwardPass], None], ...]" = ()
    before_final: Callable[[Bucket], None] | None = None

    def run(self) -> None:
        if self.others:
            self.others[0](replace(self, others=self.others[1:]))
        elif self.around:
            self.around[0](replace(self, around=self.around[1:]))
        else:
            self.loss.backward(self.gradient, self.retain_graph, inputs=self.inputs)  # type: ignore[no-untyped-call]

    def inside(self, run: "Callable[[BackwardPass], None]") -> "BackwardPass":
        """The same pass, with `run` as the innermost of what runs it."""
        return replace(self, around=(*self.around, run))

    def announced(self, final: Callable[[Bucket], None]) -> Callable[[Bucket], None]:
        """`final`, behind what comes before it."""
        before = self.before_final
        if before is None:
            return final

        def both(bucket: Bucket) -> None:
            before(bucket)
            final(bucket)

        return both

    def only(self, leaves: Sequence[torch.Tensor] | None) -> "BackwardPass":
        """The same pass for those of its leaves that are in `leaves`."""
        if leaves is None:
            return self
        wanted = None if self.inputs is None else {id(leaf) for leaf in self.inputs}
        return replace(self, inputs=tuple(leaf for leaf in leaves if wanted is None or id(leaf) in wanted))
