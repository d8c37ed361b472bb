"""RNN and LSTM, over sequences that are cut into pieces of T steps.

Legend: T steps, N sequences side by side, I input features, S static features, D outputs.
"""

from abc import abstractmethod
from collections.abc import Sequence
from math import prod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from samovar.frontends.caffe.layers.base import Layer
from samovar.frontends.caffe.spec import LayerSpec, Shape, checked, text

State = list[torch.Tensor]


class _Recurrent(Layer):
    """Bottoms: x (T, N, ...), cont (T, N), optional static values (N, ...), optional first states, (1, N, D) each.

    cont is 0 where a sequence begins, which clears its state, and 1 elsewhere. Without `expose_hidden` the state
    continues from pass to pass (zeros at first). With it, more bottoms give it and more tops return it. No gradient
    flows from one pass to another, or through given and returned states.
    """

    num_bottoms = (2, 5)
    num_tops = (1, 3)
    settings = ("recurrent_param",)
    mixes_samples = True  # axis 0 is time
    num_states: ClassVar[int]
    num_gates: ClassVar[int]  # rows of the input's weights, in multiples of D
    input_weight: nn.Parameter
    input_bias: nn.Parameter
    static_weight: nn.Parameter | None
    state_weight: nn.Parameter

    def build(self, spec: LayerSpec, bottom_shapes: Sequence[Shape]) -> None:
        settings = spec.message.recurrent_param
        self.num_output = settings.num_output
        if self.num_output < 1:
            raise spec.error("num_output is missing or 0; give the number of outputs", "recurrent_param")
        self.num_exposed = self.num_states if settings.expose_hidden else 0
        self.has_static = len(bottom_shapes) == 3 + self.num_exposed
        self._check(spec, bottom_shapes)
        steps, count = bottom_shapes[0][:2]
        state_shape = (1, count, self.num_output)
        self.top_shapes = [checked(spec, (steps, count, self.num_output), "the output")]
        self.top_shapes += [state_shape] * self.num_exposed
        self.carried = None if self.num_exposed else []
        self._make_parameters(bottom_shapes)

    def _check(self, spec: LayerSpec, shapes: Sequence[Shape]) -> None:
        expected = 2 + self.num_exposed
        if len(shapes) not in (expected, expected + 1) or len(spec.tops) != 1 + self.num_exposed:
            raise spec.error(
                f"{len(shapes)} bottoms and {len(spec.tops)} tops; it takes {expected} bottoms (x, cont"
                f"{', states' if self.num_exposed else ''}), static values as one more, and {1 + self.num_exposed} "
                "tops",
                "bottom",
            )
        x, cont = shapes[:2]
        if len(x) < 2 or cont != x[:2]:
            raise spec.error(
                f"x has shape {text(x)} and cont {text(cont)}; x must be T x N x ..., and cont T x N", "bottom"
            )
        if self.has_static and (not shapes[2] or shapes[2][0] != x[1]):
            raise spec.error(f"static values have shape {text(shapes[2])}; the first axis must be {x[1]}", "bottom")
        for shape in shapes[len(shapes) - self.num_exposed :]:
            if shape != (1, x[1], self.num_output):
                raise spec.error(
                    f"a state has shape {text(shape)}; it must be 1 x {x[1]} x {self.num_output}", "bottom"
                )

    def _make_parameters(self, shapes: Sequence[Shape]) -> None:
        rows = self.num_gates * self.num_output
        self.add_parameter("input_weight", (rows, prod(shapes[0][2:])), "weight_filler")
        self.add_parameter("input_bias", (rows,), "bias_filler")
        self.register_parameter("static_weight", None)
        if self.has_static:
            self.add_parameter("static_weight", (rows, prod(shapes[2][1:])), "weight_filler")
        self.add_parameter("state_weight", (rows, self.num_output), "weight_filler")

    def forward(self, *bottoms: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, cont = bottoms[0].flatten(2) if bottoms[0].dim() > 2 else bottoms[0][..., None], bottoms[1]
        gates = F.linear(x, self.input_weight, self.input_bias)
        if self.static_weight is not None:
            gates = gates + F.linear(bottoms[2].reshape(-1, self.static_weight.shape[1]), self.static_weight)
        states = self._first_states(bottoms, gates)
        outputs = []
        for step in range(len(x)):
            output, states = self.step(gates[step], cont[step][:, None], states)
            outputs.append(output)
        detached = [state.detach() for state in states]
        if self.num_exposed:
            return torch.stack(outputs), *(state[None] for state in detached)
        self.carried = detached
        return (torch.stack(outputs),)

    def _first_states(self, bottoms: tuple[torch.Tensor, ...], gates: torch.Tensor) -> State:
        if self.num_exposed:
            return [bottom[0].detach() for bottom in bottoms[len(bottoms) - self.num_exposed :]]
        shape = (gates.shape[1], self.num_output)
        if self.carried and self.carried[0].shape == shape:
            return [state.to(gates, copy=True) for state in self.carried]  # from inference, or before `net.to`
        return [gates.new_zeros(shape) for _ in range(self.num_states)]

    @abstractmethod
    def step(self, gates: torch.Tensor, cont: torch.Tensor, states: State) -> tuple[torch.Tensor, State]:
        """Output (N, D) and new states from the input's part of the gates, cont (N, 1) and the states (N, D)."""


class RNN(_Recurrent):
    """h = tanh(W_xh x + b_h (+ W_sh s) + W_hh (cont h)); y = tanh(W_ho h + b_o). Parameters in this order: W_xh (D, I),
    b_h (D), W_sh (D, S) with static values, W_hh (D, D), W_ho (D, D), b_o (D)."""

    num_states = 1
    num_gates = 1
    output_weight: nn.Parameter
    output_bias: nn.Parameter

    def _make_parameters(self, shapes: Sequence[Shape]) -> None:
        super()._make_parameters(shapes)
        self.add_parameter("output_weight", (self.num_output, self.num_output), "weight_filler")
        self.add_parameter("output_bias", (self.num_output,), "bias_filler")

    def step(self, gates: torch.Tensor, cont: torch.Tensor, states: State) -> tuple[torch.Tensor, State]:
        (h,) = states
        h = torch.tanh(gates + F.linear(cont * h, self.state_weight))
        return torch.tanh(F.linear(h, self.output_weight, self.output_bias)), [h]


class LSTM(_Recurrent):
    """(i, f, o, g) = W_x x + b (+ W_s s) + W_h (cont h), then c = cont sigmoid(f) c + sigmoid(i) tanh(g) and
    h = sigmoid(o) tanh(c), which is the output.

    Parameters in this order: W_x (4 D, I), b (4 D), W_s (4 D, S) with static values, W_h (4 D, D). States: h, c.
    Reference: Hochreiter and Schmidhuber, Long short-term memory, 1997; Zaremba and Sutskever, 2014.
    """

    num_states = 2
    num_gates = 4

    def step(self, gates: torch.Tensor, cont: torch.Tensor, states: State) -> tuple[torch.Tensor, State]:
        h, c = states
        i, f, o, g = (gates + F.linear(cont * h, self.state_weight)).chunk(4, 1)
        c = cont * torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, [h, c]
