"""HIP graphs, read through a library that has the HIP runtime's calls (no AMD GPU is needed, and none was run)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_capture_library import build, build_hip

from fusionscope.fusion_runtime import hip_graphs
from fusionscope.fusion_runtime.errors import RuntimeContractError
from fusionscope.fusion_runtime.hip_graphs import HipGraph


def test_nodes_kinds_and_edges(tmp_path: Path) -> None:
    library = build_hip(tmp_path)
    graph = HipGraph(7, library)
    nodes = graph.nodes()
    assert nodes == [nodes[0] + k for k in range(4)]
    assert [graph.is_kernel(node) for node in nodes] == [True, False, True, True]
    assert graph.edges() == [(nodes[2], nodes[3]), (nodes[1], nodes[2]), (nodes[0], nodes[1])]
    library.set_fails(9)
    with pytest.raises(RuntimeContractError, match="hipGraphNodeGetType failed with 9"):
        graph.is_kernel(nodes[0])
    with pytest.raises(RuntimeContractError, match="hipGraphGetNodes failed with 1"):
        HipGraph(8, library).nodes()
    with pytest.raises(RuntimeContractError, match=r"has no hipGraphGetNodes: update ROCm"):
        HipGraph(7, build(tmp_path, "a", "b")).nodes()


def test_a_captured_forward_gets_its_ordinals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from fusionscope.fusion_runtime.decode import graph as module

    library = build_hip(tmp_path)
    monkeypatch.setattr(hip_graphs, "load", lambda names: library)
    found = module._hip(SimpleNamespace(raw_cuda_graph=lambda: 7))
    assert found == (4, [0, 2, 3], [(0, 1, False), (1, 2, False), (2, 3, False)], False)
