"""Copies of a captured CUDA graph that are only replayed: with nodes disabled, or with a delay put behind nodes.

The graph itself is never changed: a copy is another instantiation of it (nodes disabled) or of a clone (delays). A
copy reads and writes the buffers of the original, so both must stay alive and neither may run while the other does.
A disabled node leaves what the last full replay wrote: stale, but valid, so indices stay in range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fusionscope.profiler.errors import FusionScopeError

#: Launches replay something once on the current stream, without waiting for its end.
Launch = Callable[[], object]

#: Clock cycles (0.2 ms) of a spin in which the host launches a graph.
_COVER_CYCLES = 400_000
_SHORT_CYCLES = 200
_LONG_CYCLES = 2_000_000


class CudaGraphs:
    """What `profiler.measure` needs of CUDA. Every method raises FusionScopeError where CUDA refuses."""

    def __init__(self) -> None:
        try:
            import torch
            from cuda.bindings import runtime
        except ImportError as error:
            raise FusionScopeError(
                f"Measuring graphs needs PyTorch and cuda-bindings ({error}): pip install 'fusionscope[runtime,cuda]'."
            ) from error
        if not torch.cuda.is_available():
            raise FusionScopeError(
                "Measuring graphs needs a GPU that torch can use, and torch sees none: run this where `nvidia-smi` "
                "lists one."
            )
        self._torch, self._rt = torch, runtime
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self._kept: list[Any] = []

    def launch(self, graph: Any) -> Launch:
        """How a captured graph is replayed."""
        replay: Launch = graph.replay
        return replay

    def timed(self, launch: Launch) -> int:
        """Replay once and wait for its end; ns between two events on the current stream."""
        begin, end = self._events
        begin.record()
        launch()
        end.record()
        end.synchronize()
        return round(float(begin.elapsed_time(end)) * 1e6)

    def covered(self, launch: Launch) -> int:
        """The same behind a spin, so that what the host takes to launch is in no time.

        A copy takes the host twice as long to launch as the graph that it was made of (16 and 7 us on an H200).
        """
        self._torch.cuda._sleep(_COVER_CYCLES)
        return self.timed(launch)

    def nodes(self, graph: Any) -> list[str]:
        """The name of each node's kernel in order of creation, "" for a node that is no kernel."""
        kernel = self._rt.cudaGraphNodeType.cudaGraphNodeTypeKernel
        handles = self._handles(self._raw(graph))
        kinds = [self._ok(self._rt.cudaGraphNodeGetType(node), "cudaGraphNodeGetType")[1] for node in handles]
        return [_kernel_name(node) if kind == kernel else "" for node, kind in zip(handles, kinds, strict=True)]

    def without(self, graph: Any, nodes: Iterable[int]) -> Launch:
        """A copy in which these nodes are disabled."""
        raw = self._raw(graph)
        handles = self._handles(raw)
        executable = self._instantiate(raw)
        for node in nodes:
            answer = self._rt.cudaGraphNodeSetEnabled(executable, handles[node], 0)
            self._ok(answer, f"cudaGraphNodeSetEnabled of node {node} (kernels, copies and fills can be disabled)")
        return self._launcher(executable, graph)

    def delayed(self, graph: Any, nodes: Sequence[int], cycles: int) -> Launch:
        """A copy in which a kernel that spins for so many clock cycles runs behind each of these nodes."""
        raw, rt = self._raw(graph), self._rt
        places = {int(node): k for k, node in enumerate(self._handles(raw))}
        clone = self._ok(rt.cudaGraphClone(raw), "cudaGraphClone")[1]
        spin = self._spin(cycles)
        behind: dict[int, list[int]] = {}
        for source, target in self._edges(raw, places):
            behind.setdefault(source, []).append(target)
        originals = self._handles(raw)
        inside = [
            self._ok(rt.cudaGraphNodeFindInClone(node, clone), "cudaGraphNodeFindInClone")[1] for node in originals
        ]
        for node in nodes:
            answer = rt.cudaGraphAddChildGraphNode(clone, [inside[node]], 1, spin)
            added = self._ok(answer, "cudaGraphAddChildGraphNode")
            targets = [inside[t] for t in behind.get(node, [])]
            if targets:
                answer = rt.cudaGraphAddDependencies(clone, [added[1]] * len(targets), targets, None, len(targets))
                self._ok(answer, "cudaGraphAddDependencies")
        executable = self._instantiate(clone)
        self._ok(rt.cudaGraphDestroy(clone), "cudaGraphDestroy")
        return self._launcher(executable, graph)

    def ns_per_cycle(self) -> float:
        """What a clock cycle of the spinning kernel takes, ns: the slope between two long spins."""
        first, second = (self._alone(cycles) for cycles in (_LONG_CYCLES, 2 * _LONG_CYCLES))
        return (min(second) - min(first)) / _LONG_CYCLES

    def chain(self, kernels: int) -> Any:
        """A captured graph of so many small kernels, one after the other, of which copies can be made.

        It is not instantiated itself: on an H200 each node of every graph took up to 0.35 us longer after a graph had
        been uploaded to the GPU and not launched (benchmarks/lab_states.py).
        """
        torch = self._torch
        x = torch.zeros(1024, device="cuda")
        x.add_(1)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            for _ in range(kernels):
                x.add_(1)
        self._kept.append(x)
        return graph

    def _alone(self, cycles: int) -> list[int]:
        raw = self._spin(cycles)
        launch = self._launcher(self._instantiate(raw), None)
        return [self.timed(launch) for _ in range(5)]

    def _spin(self, cycles: int) -> Any:
        torch = self._torch
        torch.cuda._sleep(_SHORT_CYCLES)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            torch.cuda._sleep(int(cycles))
        self._kept.append(graph)
        return self._raw(graph)

    def _raw(self, graph: Any) -> Any:
        try:
            return self._rt.cudaGraph_t(graph.raw_cuda_graph())
        except (RuntimeError, AttributeError) as error:
            raise FusionScopeError(
                "The graph's nodes cannot be read: capture it with torch.cuda.CUDAGraph(keep_graph=True), which needs "
                f"torch 2.8 or later ({str(error).splitlines()[0]})."
            ) from error

    def _handles(self, raw: Any) -> list[Any]:
        count = int(self._ok(self._rt.cudaGraphGetNodes(raw), "cudaGraphGetNodes")[-1])
        return list(self._ok(self._rt.cudaGraphGetNodes(raw, count), "cudaGraphGetNodes")[1])

    def _edges(self, raw: Any, places: dict[int, int]) -> list[tuple[int, int]]:
        count = int(self._ok(self._rt.cudaGraphGetEdges(raw), "cudaGraphGetEdges")[-1])
        answer = self._ok(self._rt.cudaGraphGetEdges(raw, count), "cudaGraphGetEdges")
        pairs = zip(answer[1], answer[2], strict=True)
        return [(places[int(a)], places[int(b)]) for a, b in pairs if int(a) in places and int(b) in places]

    def _instantiate(self, raw: Any) -> Any:
        return self._ok(self._rt.cudaGraphInstantiate(raw, 0), "cudaGraphInstantiate")[1]

    def _launcher(self, executable: Any, graph: Any) -> Launch:
        rt, torch = self._rt, self._torch
        self._kept.append((executable, graph))

        def launch() -> None:
            self._ok(rt.cudaGraphLaunch(executable, torch.cuda.current_stream().cuda_stream), "cudaGraphLaunch")

        return launch

    def close(self) -> None:
        """Let go of every copy; none may be launched afterwards."""
        self._torch.cuda.synchronize()
        for item in self._kept:
            if isinstance(item, tuple):
                self._rt.cudaGraphExecDestroy(item[0])
        self._kept.clear()

    @staticmethod
    def _ok(answer: Any, what: str) -> Any:
        if int(answer[0]) != 0:
            raise FusionScopeError(f"{what} failed with {answer[0]}: this graph cannot be measured in this way.")
        return answer


def _kernel_name(node: Any) -> str:
    """The mangled name of a kernel node, "?" where the driver does not tell."""
    from cuda.bindings import driver

    try:
        answer = driver.cuGraphKernelNodeGetParams(driver.CUgraphNode(int(node)))
        if int(answer[0]) != 0:
            return "?"
        params = answer[1]
        named = driver.cuFuncGetName(params.func) if int(params.func) else driver.cuKernelGetName(params.kern)
        return str(named[1].decode() if isinstance(named[1], bytes) else named[1]) if int(named[0]) == 0 else "?"
    except (AttributeError, TypeError, ValueError):
        return "?"
