"""Captures one decode step in a CUDA or HIP graph, with the provenance of its nodes.

Node ordinals count every node of the graph, kernels and others, in the order of creation; they equal the low 32 bits
of the node ids that CUPTI and Nsight report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fusionscope.fusion_runtime.decode.model import DecodeModel
from fusionscope.fusion_runtime.decode.recorder import SiteRow
from fusionscope.fusion_runtime.errors import RuntimeContractError

Tensor = Any

WARM_UP_STEPS = 3
"""Steps before the capture: Triton compiles, cuBLAS picks kernels, buffers are made."""

Edge = tuple[int, int, bool]
"""(node that comes first, node that waits for it, whether the edge is programmatic: overlap is allowed)."""


@dataclass
class CapturedForward:
    """A captured step. `tokens` [T] int64 is the static output; replays advance the model's recurrent states."""

    graph: Any
    tokens: Tensor
    site_rows: list[SiteRow]
    node_count: int
    kernel_nodes: list[int]
    """Ordinals of the nodes that are kernels."""
    edges: list[Edge]
    edge_kinds_known: bool
    """False where the bindings give no edge data: then no edge is marked programmatic."""
    graph_id: int | None = None
    """The executable graph's id as profilers print it, where the driver tells it."""
    keep_alive: list[Any] = field(default_factory=list)

    def replay(self) -> None:
        """Launches the graph on the current stream; does not wait."""
        self.graph.replay()


class Keep(TorchDispatchMode):  # type: ignore[misc]
    """Holds every tensor that an operation makes inside, so that no memory of theirs is used a second time."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.held.append(made)
        return made


def capture(model: DecodeModel, padding: Sequence[int] = (), keep: bool = False) -> CapturedForward:
    """Runs `model.step()` until nothing is compiled or allocated any more, then captures it.

    `padding`: bytes of buffers that the graph's memory pool gives away first, so that the step's own buffers lie
    elsewhere than in another capture: on where they lie it depends how long a replay takes. `keep`: every tensor of the
    step has memory of its own, so that what a disabled node should have written is still there from the last whole
    replay.

    Raises RuntimeContractError if the model is not on CUDA or the CUDA bindings refuse.
    """
    if model.device.type != "cuda":
        raise RuntimeContractError(f"a model on {model.device.type} cannot be captured: build it on cuda.")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_STEPS):
            model.step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    held = Keep() if keep else nullcontext()
    with torch.cuda.graph(graph), held:
        first = [torch.empty(size, dtype=torch.uint8, device=model.device) for size in padding]
        tokens = model.step()
    rows = [replace(row) for row in model.ctx.recorder.rows]
    nodes, kernels, edges, known = _hip(graph) if torch.version.hip else _cuda(graph)
    graph.instantiate()
    exec_id = None if torch.version.hip else _exec_id(graph)
    return CapturedForward(graph, tokens, rows, nodes, kernels, edges, known, exec_id, [model, model.ctx, held, *first])


def _cuda(graph: Any) -> tuple[int, list[int], list[Edge], bool]:
    """(nodes, ordinals of kernels, edges, whether their kinds are known)."""
    nodes, kernels = _nodes(graph.raw_cuda_graph())
    edges, known = _edges(graph.raw_cuda_graph(), nodes)
    return len(nodes), kernels, edges, known


def _hip(graph: Any) -> tuple[int, list[int], list[Edge], bool]:
    """The same of a HIP graph, whose edges have no kinds."""
    from fusionscope.fusion_runtime.hip_graphs import HipGraph

    captured = HipGraph(graph.raw_cuda_graph())
    ordinal = {node: k for k, node in enumerate(captured.nodes())}
    kernels = [k for node, k in ordinal.items() if captured.is_kernel(node)]
    edges = sorted((ordinal[a], ordinal[b], False) for a, b in captured.edges())
    return len(ordinal), kernels, edges, False


def _checked(answer: Any, what: str) -> Any:
    if int(answer[0]) != 0:
        raise RuntimeContractError(f"{what} failed with {answer[0]}: the graph's nodes cannot be read.")
    return answer


def _handle(raw: int) -> Any:
    from cuda.bindings import runtime

    return runtime.cudaGraph_t(raw)


def _nodes(raw: int) -> tuple[dict[int, int], list[int]]:
    """({node handle: ordinal}, ordinals of kernel nodes)."""
    from cuda.bindings import runtime

    graph = _handle(raw)
    count = int(_checked(runtime.cudaGraphGetNodes(graph), "cudaGraphGetNodes")[-1])
    nodes = _checked(runtime.cudaGraphGetNodes(graph, count), "cudaGraphGetNodes")[1]
    kernel = runtime.cudaGraphNodeType.cudaGraphNodeTypeKernel
    kinds = [_checked(runtime.cudaGraphNodeGetType(node), "cudaGraphNodeGetType")[1] for node in nodes]
    return {int(node): k for k, node in enumerate(nodes)}, [k for k, kind in enumerate(kinds) if kind == kernel]


def _edges(raw: int, ordinal: dict[int, int]) -> tuple[list[Edge], bool]:
    """Edges by ordinal, and whether the bindings gave edge data (CUDA 13; in 12 the _v2 function)."""
    from cuda.bindings import runtime

    get = getattr(runtime, "cudaGraphGetEdges_v2", runtime.cudaGraphGetEdges)
    graph = _handle(raw)
    count = int(_checked(get(graph), "cudaGraphGetEdges")[-1])
    answer = _checked(get(graph, count), "cudaGraphGetEdges")
    sources, targets = answer[1], answer[2]
    # (error, from, to, count) without edge data, (error, from, to, data, count) with it.
    known = len(answer) > 4
    programmatic = [False] * count
    if known:
        ordinary = int(runtime.cudaGraphDependencyType.cudaGraphDependencyTypeDefault)
        programmatic = [int(item.type) != ordinary for item in answer[3]]
    edges = [
        (ordinal[int(source)], ordinal[int(target)], overlaps)
        for source, target, overlaps in zip(sources, targets, programmatic, strict=False)
    ]
    return sorted(edges[:count]), known


def _exec_id(graph: Any) -> int | None:
    from cuda.bindings import runtime

    get = getattr(runtime, "cudaGraphExecGetId", None)
    raw = getattr(graph, "raw_cuda_graph_exec", None)
    if get is None or raw is None:
        return None
    answer = get(runtime.cudaGraphExec_t(raw()))
    return int(answer[1]) if int(answer[0]) == 0 else None
