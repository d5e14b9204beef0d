"""A whole step as one graph: traced, compiled, and on a GPU captured."""

from __future__ import annotations

import gc
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from gradreg.engines.rows import keep_rows
from gradreg.engines.simplify import simplify
from gradreg.memory import owners
from gradreg.parts import compiled_in_parts

#: Places of tensors.
Groups = Sequence[Sequence[int]]
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
    _check_can_be_run_again(graph)
    graph.graph.eliminate_dead_code()
    _leave_out_copies_that_nobody_reads(graph)
    graph.recompile()
    return graph


def _check_can_be_run_again(graph: GraphModule) -> None:
    if any(node.target is torch.ops.aten.mkldnn_rnn_layer_backward.default for node in graph.graph.nodes):
        raise TraceError("the step cannot be written down as one graph: oneDNN's recurrent layers leave out what they need")


def _leave_out_copies_that_nobody_reads(graph: GraphModule) -> None:
    """What is written at last to a tensor made in the graph itself, such as the input of a ReLU in place."""
    owner = owners(graph.graph)
    read_later: set[Node] = set()
    for node in reversed(graph.graph.nodes):
        into = owner[node.args[0]] if node.target is torch.ops.aten.copy_.default else None
        if into is not None and into.op == "call_function" and into not in read_later:
            graph.graph.erase_node(node)  # its result, the same memory, is read by nobody either
        else:
            read_later.update(owner[one] for one in node.all_input_nodes)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


@dataclass(frozen=True, eq=False)
class Code:
    """What a step does, whatever tensors it does it to: as traced, and on a GPU as compiled."""

    graph: GraphModule
    compiled: Callable[..., Any] | None = None


class Program:
    """A step that is traced once and then run again and again on the same tensors.

    On a GPU it is compiled by ``torch.compile``, part by part, and captured in a CUDA graph; on the CPU the traced
    operations are run one after the other, without the cost of differentiation and vectorisation, and without waiting for
    a compiler.

    Args:
        step: what to do. Its control flow may depend on shapes, not on values.
        state: the tensors that it changes.
        inputs: the tensors that it reads; to give it new values, copy them there.
        judged: places of those tensors of the state by which a compiled step is compared with the traced one, in groups of
            like size: what it puts out, and its gradients or their moments.
        after: what to do at the end of every step beyond the traced operations, such as an optimizer's own kernels. On a
            GPU it becomes part of the captured graph.
        code: of a program of the same step on other tensors of the same shapes and layouts; nothing is traced then.

    PyTorch's statistics of peak memory start anew at the capture: afterwards they tell what a step needs.
    """

    def __init__(
        self,
        step: Step,
        state: Sequence[Tensor],
        inputs: Sequence[Tensor],
        *,
        judged: Groups,
        after: Callable[[], object] | None = None,
        code: Code | None = None,
    ) -> None:
        self.state, self.inputs, self.judged, self.after = list(state), list(inputs), judged, after or _nothing
        self.code = code or self._traced(step)
        self._replay_captured: Callable[[], None] | None = None
        if self.state[0].is_cuda:
            with self._as_traced(), torch.cuda.device(self.state[0].device):
                self._replay_captured = self._captured()
        elif code is None:
            simplify(self.graph)

    @property
    def graph(self) -> GraphModule:
        """As traced."""
        return self.code.graph

    def __call__(self) -> None:
        (self._replay_captured or self._replay)()

    def _traced(self, step: Step) -> Code:
        with torch.no_grad():
            return Code(trace(lambda state, inputs: step(state, inputs), _copies(self.state), self.inputs))

    def _replay(self) -> None:
        with self._as_traced():
            self.graph(self.state, self.inputs)
        self.after()

    @contextmanager
    def _as_traced(self) -> Iterator[None]:
        """Without gradients, and without autocast: what it casts is part of the graph already."""
        with torch.no_grad(), torch.autocast(self.state[0].device.type, enabled=False):
            yield

    def _captured(self) -> Callable[[], None]:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            compiled = self._compiled()
        torch.cuda.current_stream().wait_stream(stream)
        gc.collect()  # what tracing left behind would stay beside the graph's own memory
        captured = torch.cuda.CUDAGraph()
        torch.cuda.reset_peak_memory_stats()
        _forget_workspaces()
        with torch.cuda.graph(captured, stream=stream):
            compiled(self.state, self.inputs)
            self.after()
        _forget_workspaces()
        return captured.replay

    def _compiled(self) -> Callable[..., Any]:
        """Compiled now, or what was compiled before after a trial, so that nothing is loaded during the capture."""
        if self.code.compiled is not None:
            _after(self.code.compiled, self.state, self.inputs, self.judged)
            return self.code.compiled
        compiled = compiled_and_checked(self.graph, self.state, self.inputs, self.judged)
        self.code = Code(self.graph, compiled)
        return compiled


def _forget_workspaces() -> None:
    """Let matrix products of a captured graph have a workspace of their own.

    PyTorch keeps one for each stream. Made in one graph's memory, it would be used by the next, beside it or after its end.
    """
    torch._C._cuda_clearCublasWorkspaces()


def compiled_and_checked(
    graph: GraphModule, state: Sequence[Tensor], inputs: Sequence[Tensor], judged: Groups
) -> Callable[..., Any]:
    """The graph compiled; itself, with a warning, if the compiled one does not give what it gives.

    The compiler is large and has had errors that change results without a word; gradients that are wrong train all the same.
    """
    expected = _after(graph, state, inputs, judged)
    compiled = compiled_in_parts(
        keep_rows(graph), partial(torch.compile, fullgraph=True, dynamic=False, options=_options(graph))
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\s*Online softmax is disabled")  # of ten classes: it has nothing to gain
        _after(compiled, state, inputs, judged)  # compile, and choose kernels
    found = _after(compiled, state, inputs, judged)
    half = _in_half_precision(graph)
    error_of = error_of_all if half else largest_error
    error, bound = max(map(error_of, found, expected)), _bound(expected[0], half)
    if error <= bound:
        return compiled
    warnings.warn(
        f"torch.compile got this step wrong: results differ by {error:.1e} of their size from those of the operations it "
        f"was given (allowed: {bound:.0e}). The step runs without it, and slower. Another version of PyTorch may help.",
        stacklevel=2,
    )
    return graph


def _options(graph: GraphModule) -> dict[str, bool | int]:
    return {
        # Padded strides were behind several of the errors, https://github.com/pytorch/pytorch/issues/194281 for one.
        "comprehensive_padding": False,
        "fallback_random": draws(graph),
        # Sums over one tensor become one kernel where they stand side by side, not where each stands before what reads it.
        "reorder_for_locality": False,
        # Sums over up to 16 rows of a Jacobian, far apart in memory: added element by element, one row along the other.
        "unroll_reductions_threshold": 17,
    }


def largest_error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest relative error of a tensor; those below a hundredth of the largest are measured by that."""
    floor = 0.01 * max(float(tensor.norm()) for tensor in expected)
    errors = [float((f - e).norm()) / max(float(e.norm()), floor, 1e-30) for f, e in zip(found, expected, strict=True)]
    return math.inf if any(map(math.isnan, errors)) else max(errors)


def error_of_all(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The relative error of all tensors as one vector.

    In half precision those of single ones tell nothing: of a deep network with batch norm, some gradients are all rounding.
    """
    apart = math.hypot(*(float((f - e).norm()) for f, e in zip(found, expected, strict=True)))
    size = math.hypot(*(float(e.norm()) for e in expected))
    return math.inf if math.isnan(apart) else apart / max(size, 1e-30)


def _in_half_precision(graph: GraphModule) -> bool:
    arguments = [value for node in graph.graph.nodes for value in (*node.args, *node.kwargs.values())]
    return torch.bfloat16 in arguments or torch.float16 in arguments


def draws(graph: GraphModule) -> bool:
    """Whether a model has random operations of its own, which are then to draw what they draw without a compiler."""
    tags = (tag for node in graph.graph.nodes for tag in getattr(node.target, "tags", ()))
    return torch.Tag.nondeterministic_seeded in tags


def _bound(expected: Sequence[Tensor], half: bool) -> float:
    """What rounding may do; in half precision much, since a compiled graph rounds in other places."""
    if half:
        return 0.5
    return 1e-6 if expected[0].dtype == torch.float64 else 0.05


def _after(run: Callable[..., Any], state: Sequence[Tensor], inputs: Sequence[Tensor], judged: Groups) -> list[list[Tensor]]:
    """What the judged tensors are after one step on a copy of the state."""
    copies = _copies(state)
    for place in itertools.chain(*judged):  # moments, from zero, are gradients
        copies[place].zero_()
    with torch.random.fork_rng([state[0].device] if state[0].is_cuda else []):  # each time from the same random state
        run(copies, inputs)
    return [[copies[place] for place in group] for group in judged]


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]


def _nothing() -> None:
    """No more to do."""
