"""`boundary` around somebody's PyTorch code while a CUDA graph is captured, seen from the trace."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gpus import needs_gpu

from fusionscope.fusion_runtime import boundary, marks

pytestmark = needs_gpu


def layers(x: object, count: int) -> object:
    for layer in range(count):
        x = torch.sin(x)  # type: ignore[arg-type]
        with boundary("exit", layer=layer):
            x = torch.cos(x)
            x = torch.sqrt(torch.abs(x))
    return x


def test_marks_under_capture_are_the_graphs_nodes(tmp_path: Path) -> None:
    x = torch.ones(1024, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        layers(x, 5)
    torch.cuda.current_stream().wait_stream(side)
    with marks.record(str(tmp_path / "m-{rank}.jsonl")) as found:
        for count in (3, 5):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                layers(x, count)
    # Four kernels a layer, of which the boundary holds the last three.
    expected = [(c, k, 4 * k + 1, 4 * k + 4) for c, count in enumerate((3, 5)) for k in range(count)]
    assert [(m.capture, m.layer, m.first, m.last) for m in found.rows] == expected

    from torch.profiler import ProfilerActivity, profile

    from fusionscope.analysis.analysed import analyse
    from fusionscope.profiler.importing import import_files
    from fusionscope.profiler.runinfo import RunInfo
    from fusionscope.profiler.store import Run

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
    prof.export_chrome_trace(str(tmp_path / "rank0.json"))
    trace = import_files([tmp_path / "rank0.json"], provenance=tmp_path / "m-0.jsonl")
    attribution = analyse(Run(RunInfo(), trace, tmp_path)).attribution
    assert [s.columns for s in attribution.sites["exit"]] == [(4 * k + 1, 4 * k + 2, 4 * k + 3) for k in range(5)]
    assert attribution.rungs["exit"] in (1, 3)


def test_eager_code_is_found_by_its_ranges(tmp_path: Path) -> None:
    from torch.profiler import ProfilerActivity, profile

    from fusionscope.analysis.analysed import analyse
    from fusionscope.profiler.importing import import_files
    from fusionscope.profiler.runinfo import RunInfo
    from fusionscope.profiler.store import Run

    x = torch.ones(1024, device="cuda")
    layers(x, 1)
    torch.cuda.synchronize()
    with marks.record(), profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as prof:
        layers(x, 2)
        torch.cuda.synchronize()
    prof.export_chrome_trace(str(tmp_path / "rank0.json"))
    attribution = analyse(Run(RunInfo(), import_files([tmp_path / "rank0.json"]), tmp_path)).attribution
    assert [s.columns for s in attribution.sites["exit"]] == [(1, 2, 3), (5, 6, 7)]
    assert attribution.rungs["exit"] == 2
