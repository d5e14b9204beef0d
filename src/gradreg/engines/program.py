"""A whole step as one graph: traced, compiled, and on a GPU captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

#: Reads its inputs and changes its state in place.
Step = Callable[[Sequence[Tensor], Sequence[Tensor]], None]


class TraceError(RuntimeError):
    """The step cannot be written down as one graph of operations on tensors."""


def trace(function: Callable[..., Any], *args: Any) -> GraphModule:
    """The operations that the function ran on these arguments, its own differentiation among them, as one graph.

    What is traced is what eager mode does: every kind of differentiation, hook and mode is gone from the graph, and only
    operations on tensors are left.
    """
    try:
        graph = make_fx(function)(*args)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise TraceError(f"the step cannot be written down as one graph: {_first_line(error)}") from error
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


class Program:
    """A step that is traced once and then run again and again on the same tensors.

    On a GPU it is compiled by ``torch.compile`` and captured in a CUDA graph; on the CPU the traced operations are run one
    after the other, without the cost of differentiation and vectorisation, and without waiting for a compiler.

    Args:
        step: what to do. Its control flow may depend on shapes, not on values.
        state: the tensors that it changes.
        inputs: the tensors that it reads; to give it new values, copy them there.
        after: what to do at the end of every step beyond the traced operations, such as an optimizer's own kernels. On a
            GPU it becomes part of the captured graph.

    PyTorch's statistics of peak memory start anew at the capture: afterwards they tell what a step needs.
    """

    def __init__(
        self,
        step: Step,
        state: Sequence[Tensor],
        inputs: Sequence[Tensor],
        after: Callable[[], object] | None = None,
    ) -> None:
        self.state, self.inputs, self.after = list(state), list(inputs), after or _nothing
        with torch.no_grad():
            self.graph = trace(lambda state, inputs: step(state, inputs), [t.clone() for t in self.state], self.inputs)
            self._run = self._captured() if self.state[0].is_cuda else self._replay

    def __call__(self) -> None:
        self._run()

    def _replay(self) -> None:
        with torch.no_grad():
            self.graph(self.state, self.inputs)
        self.after()

    def _captured(self) -> Callable[[], None]:
        compiled = torch.compile(self.graph, fullgraph=True, dynamic=False)
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            scratch = [t.clone() for t in self.state]
            for _ in range(2):  # compile and choose kernels, on a copy
                compiled(scratch, self.inputs)
            del scratch
        torch.cuda.current_stream().wait_stream(stream)
        captured = torch.cuda.CUDAGraph()
        torch.cuda.reset_peak_memory_stats()
        with torch.cuda.graph(captured):
            compiled(self.state, self.inputs)
            self.after()
        return captured.replay


def _nothing() -> None:
    """No more to do."""
