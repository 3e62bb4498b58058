"""The built-in model under rocprofv3, as far as it goes without an AMD GPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_traces
import pytest
from fake_capture_library import build_hip

from fusionscope.profiler.capture import choose, collect, rocprof, session, wrappers
from fusionscope.profiler.capture.messages import Report, SiteNote
from fusionscope.profiler.capture.plan import CaptureError, CapturePlan


def a_plan(**changes: Any) -> CapturePlan:
    given = {"model": "m", "tp": 2, "batch": 4, "context": 64, "device": "cuda", "profiler": "rocprofv3", **changes}
    return CapturePlan(**given)


def test_every_rank_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrappers, "find_rocprofv3", lambda: Path("/opt/rocm/bin/rocprofv3"))
    assert " ".join(session._prefix(a_plan(), None, Path("/out"))) == (
        "/opt/rocm/bin/rocprofv3 --kernel-trace --hip-trace --marker-trace --selected-regions --output-format json "
        "-d /out -o rank%env{RANK}% --"
    )
    assert session._prefix(a_plan(emulated=True), None, Path("/out"))[-2] == "rank0"
    assert session._prefix(a_plan(profiler="torch"), None, Path("/out")) == ()


def test_the_ranks_are_read_and_their_sites_placed_by_ordinal(tmp_path: Path) -> None:
    from fusionscope.analysis.analysed import analyse
    from fusionscope.profiler.runinfo import RunInfo
    from fusionscope.profiler.store import Run

    reports = []
    for rank in range(2):
        (tmp_path / "host").mkdir(exist_ok=True)
        fake_traces.rocprofv3(tmp_path / "host" / f"rank{rank}_results.json", 500 + rank, rank)
        sites = [
            SiteNote(
                boundary="ar_norm", subtype="residual", layer=k, path="split", first_node=3 * k + 1, last_node=3 * k + 3
            )
            for k in range(2)
        ]
        edges = [(k, k + 1, False) for k in range(5)]
        reports.append(Report(rank=rank, process=500 + rank, timings=[], sites=sites, edges=edges, nodes=6))
    trace = collect.trace_of(a_plan(replays=2), tmp_path, {"untraced": [], "traced": reports})
    assert trace.warnings == () or not any("replayed" in w for w in trace.warnings)
    found = analyse(Run(RunInfo(labels=["built-in model"]), trace, tmp_path), rank=1).attribution
    assert [s.columns for s in found.sites["ar_norm"]] == [(1, 2), (4, 5)]
    assert found.rungs["ar_norm"] == 3
    with pytest.raises(CaptureError, match="recorded nothing for rank 2"):
        rocprof.trace_file(tmp_path, 2)


def test_the_recording_lies_between_resume_and_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    library = build_hip(tmp_path)
    with rocprof.recording(library):
        assert library.calls() == 1
    assert library.calls() == 12
    with pytest.raises(ValueError), rocprof.recording(library):
        raise ValueError
    assert library.calls() == 1212
    monkeypatch.setattr(rocprof, "_LIBRARIES", ("libno.so",))
    with pytest.raises(CaptureError, match="LD_LIBRARY_PATH"), rocprof.recording():
        pass


def test_the_profiler_fits_the_build_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for asked in ("nsys", "cupti"):
        with pytest.raises(CaptureError, match="NVIDIA GPUs"):
            choose._hip_profiler(asked)
    with pytest.raises(CaptureError, match="HIP build"):
        choose._profiler("rocprofv3", "cuda")
    with pytest.raises(CaptureError, match="records GPUs only"):
        choose._profiler("rocprofv3", "cpu")
    monkeypatch.setattr(wrappers, "find_rocprofv3", lambda: Path("/r"))
    assert choose._hip_profiler("auto") == ("rocprofv3", ["profiler: rocprofv3 (/r)", choose._UNTRIED])
    assert choose._hip_profiler("rocprofv3")[0] == "rocprofv3"
    assert choose._hip_profiler("torch") == ("torch", ["profiler: torch"])
    monkeypatch.setattr(wrappers, "find_rocprofv3", lambda: None)
    assert choose._hip_profiler("auto") == ("torch", ["profiler: torch (rocprofv3 is not installed)"])
    with pytest.raises(CaptureError, match="rocprofiler-sdk"):
        choose._hip_profiler("rocprofv3")


def test_a_plan_on_a_hip_build(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(wrappers, "find_rocprofv3", lambda: Path("/r"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    fake = SimpleNamespace(cuda=torch.cuda, version=SimpleNamespace(hip="7.0"))
    monkeypatch.setattr(choose, "need_torch", lambda: fake)
    made, notes = choose.make_plan("tiny", 2, context=1024)
    assert made.profiler == "rocprofv3" and "profiler: rocprofv3 (/r)" in notes
