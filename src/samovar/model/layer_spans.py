"""When each layer of a net computes, forward and backward, from hooks."""

from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch import nn
from torch.autograd.graph import Node
from torch.utils.hooks import RemovableHandle

from samovar.core.trace import Span, Trace

Layers = Sequence[tuple[str, nn.Module]]


class LayerSpans:
    """Spans of `layers`, (name, module), on the streams "forward" and "backward" of `trace`.

    The modules have hooks only from `attach` to `detach`. A layer's backward lasts from its first node of autograd's
    graph to its last. Call `passed` after a backward pass.
    """

    def __init__(self, layers: Layers, trace: Trace) -> None:
        self._layers = layers
        self._trace = trace
        self._hooks: list[RemovableHandle] = []
        self._node_hooks: list[RemovableHandle] = []
        self._entered: dict[str, tuple[float, list[Node]]] = {}
        self._name = ""  # the layer whose backward runs
        self._start_s = self._stop_s = 0.0

    def attach(self) -> None:
        for name, module in self._layers:
            self._hooks.append(module.register_forward_pre_hook(partial(self._enter, name)))
            self._hooks.append(module.register_forward_hook(partial(self._leave, name)))

    def detach(self) -> None:
        self.passed()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def passed(self) -> None:
        """Close the spans: the backward pass is over."""
        self._close()
        for hook in self._node_hooks:
            hook.remove()
        self._node_hooks.clear()

    def _enter(self, name: str, _module: nn.Module, bottoms: object) -> None:
        # The nodes now: a layer that works in place gives its bottom another.
        self._entered[name] = self._trace.now_s(), _nodes_of(bottoms)

    def _leave(self, name: str, _module: nn.Module, _bottoms: object, tops: object) -> None:
        start_s, before = self._entered.pop(name)
        self._trace.add(Span("forward", name, start_s, self._trace.now_s()))
        for node in _between(before, _nodes_of(tops)):
            self._node_hooks.append(node.register_prehook(partial(self._begin, name)))
            self._node_hooks.append(node.register_hook(partial(self._end, name)))

    def _begin(self, name: str, _gradients: object) -> None:
        if name != self._name:
            self._close()
            self._name = name
            self._start_s = self._stop_s = self._trace.now_s()

    def _end(self, name: str, _gradients: object, _of_outputs: object) -> None:
        if name == self._name:
            self._stop_s = self._trace.now_s()

    def _close(self) -> None:
        if self._name:
            self._trace.add(Span("backward", self._name, self._start_s, self._stop_s))
            self._name = ""


def _nodes_of(tensors: object) -> list[Node]:
    found = tensors if isinstance(tensors, Iterable) and not isinstance(tensors, torch.Tensor) else (tensors,)
    return [t.grad_fn for t in found if isinstance(t, torch.Tensor) and t.grad_fn is not None]


def _between(before: list[Node], after: list[Node]) -> list[Node]:
    """All nodes on the way back from `after` to `before`, without those of `before`."""
    seen, waiting, found = set(before), list(after), []
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            found.append(node)
            waiting += [following for following, _ in node.next_functions if following is not None]
    return found
