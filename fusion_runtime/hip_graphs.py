"""Nodes and edges of a captured HIP graph, through the HIP runtime that the process has loaded (ctypes).

Written from HIP's documentation and tested against a library with the same calls: it was not run on an AMD GPU.
"""

from __future__ import annotations

import ctypes
from typing import Any

from fusionscope.fusion_runtime.errors import RuntimeContractError
from fusionscope.fusion_runtime.graph_nodes import HIP, load

_KERNEL = 0  # hipGraphNodeTypeKernel


class HipGraph:
    """A captured, not yet instantiated graph by its handle, as torch's `raw_cuda_graph()` gives it on ROCm."""

    def __init__(self, raw: int, library: Any = None) -> None:
        """Raises RuntimeContractError where the HIP runtime cannot be loaded."""
        self._graph = ctypes.c_void_p(raw)
        self._library = load(HIP.libraries) if library is None else library

    def nodes(self) -> list[int]:
        """Handles of all nodes, in order of creation."""
        count = ctypes.c_size_t(0)
        self._call("hipGraphGetNodes", self._graph, None, ctypes.byref(count))
        found = (ctypes.c_void_p * count.value)()
        self._call("hipGraphGetNodes", self._graph, found, ctypes.byref(count))
        return [int(node or 0) for node in found[: count.value]]

    def is_kernel(self, node: int) -> bool:
        """Whether a node launches a kernel."""
        kind = ctypes.c_int(-1)
        self._call("hipGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        return kind.value == _KERNEL

    def edges(self) -> list[tuple[int, int]]:
        """(handle that comes first, handle that waits for it) of every edge."""
        count = ctypes.c_size_t(0)
        self._call("hipGraphGetEdges", self._graph, None, None, ctypes.byref(count))
        first, then = (ctypes.c_void_p * count.value)(), (ctypes.c_void_p * count.value)()
        self._call("hipGraphGetEdges", self._graph, first, then, ctypes.byref(count))
        return [(int(a or 0), int(b or 0)) for a, b in zip(first, then, strict=True)][: count.value]

    def _call(self, name: str, *arguments: Any) -> None:
        call = getattr(self._library, name, None)
        if call is None:
            raise RuntimeContractError(f"The HIP runtime has no {name}: update ROCm to 5.2 or later.")
        call.restype = ctypes.c_int
        code = call(*arguments)
        if code:
            raise RuntimeContractError(f"{name} failed with {code}: the graph's nodes cannot be read.")
