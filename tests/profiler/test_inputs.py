"""Folders of ranks, standard input, and which file is which rank."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest
from oracle import SAMPLES, needs_samples

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.importing import import_files
from fusionscope.profiler.inputs import Inputs, gathered, traces_in

HEADER = "Kind,Agent_Id,Queue_Id,Kernel_Name,Correlation_Id,Dispatch_Id,Start_Timestamp,End_Timestamp"


def kineto(path: Path, world_size: int = 0, rank: int = -1) -> Path:
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2}
    told = {"distributedInfo": {"rank": rank, "world_size": world_size}} if world_size else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"traceEvents": [event], **told}))
    return path


def rocprofv3(path: Path, agent: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{HEADER}\nKERNEL_DISPATCH,Agent {agent},1,k,1,1,{agent},20\n")
    return path


def names(inputs: Inputs, folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in inputs.paths]


def test_a_folder_stands_for_its_traces(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        kineto(tmp_path / f"deep/x-rank-{rank}.json")
    (tmp_path / "deep/x.nodes.json").write_text('{"boundary": "ar_norm"}')
    (tmp_path / "profiler_out_0.txt").write_text("a table")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / ".hidden.json").write_text('{"traceEvents": []}')
    (tmp_path / "circle").symlink_to(tmp_path)
    with gathered([tmp_path]) as inputs:
        assert names(inputs, tmp_path) == ["deep/x-rank-0.json", "deep/x-rank-2.json", "deep/x-rank-10.json"]
        trace = import_files(inputs.paths)
    assert sorted(trace.kernels["rank"]) == [0, 2, 10]
    assert any(w.startswith("Ranks 1, 3 to 9 of at least 11 are missing") for w in trace.warnings)


def test_one_recording_in_several_forms_is_read_once(tmp_path: Path) -> None:
    rocprofv3(tmp_path / "host/7_kernel_trace.csv", 1)
    (tmp_path / "host/7_hip_api_trace.csv").write_text("Domain,Function,Start_Timestamp,End_Timestamp\n")
    (tmp_path / "host/7_results.json").write_text('{"rocprofiler-sdk-tool": []}')
    inputs = traces_in(tmp_path)
    assert names(inputs, tmp_path) == ["host/7_results.json"]
    assert inputs.notes == ["host/7_kernel_trace.csv was not read: 7_results.json holds the same recording."]


def test_all_files_of_rocprofv3_given_at_once(tmp_path: Path) -> None:
    kernels = rocprofv3(tmp_path / "7_kernel_trace.csv", 1)
    calls = tmp_path / "7_hip_api_trace.csv"
    calls.write_text(
        "Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp\nH,hipLaunchKernel,7,7,1,0,1\n"
    )
    agents = tmp_path / "7_agent_info.csv"
    agents.write_text("Node_Id,Agent_Type,Product_Name\n1,GPU,MI300X\n")
    with gathered([agents, calls, kernels]) as inputs:
        assert inputs.paths == [kernels]
        trace = import_files(inputs.paths)
    assert len(trace.launches) == 1 and trace.machine["gpu"] == "MI300X"


def test_files_without_a_rank_are_numbered_by_device(tmp_path: Path) -> None:
    rocprofv3(tmp_path / "host/20_kernel_trace.csv", 5)
    rocprofv3(tmp_path / "host/31_kernel_trace.csv", 4)
    with gathered([tmp_path]) as inputs:
        trace = import_files(inputs.paths)
    assert dict(zip(trace.kernels["rank"], trace.kernels["process"], strict=True)) == {0: 31, 1: 20}
    said = "rank 0 is 31_kernel_trace.csv (device 4), rank 1 is 20_kernel_trace.csv (device 5)"
    assert any(said in warning for warning in trace.warnings)
    rocprofv3(tmp_path / "host/31_kernel_trace.csv", 5)
    with gathered([tmp_path]) as inputs, pytest.raises(FusionScopeError, match="both claim rank 0"):
        import_files(inputs.paths)


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    files = [kineto(tmp_path / f"{rank}.json", 8, rank) for rank in (0, 3)]
    warnings = import_files(files).warnings
    assert any(w.startswith("Ranks 1, 2, 4 to 7 of 8 are missing: numbers of one rank hold") for w in warnings)
    whole = [kineto(tmp_path / f"{rank}.json", 2, rank) for rank in (0, 1)]
    assert not any("missing" in w for w in import_files(whole).warnings)


def test_a_folder_without_a_trace(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(FusionScopeError, match="holds no trace among its 1 files"):
        traces_in(tmp_path)


class Pipe(io.BytesIO):
    """Standard input: `buffer` gives bytes."""

    @property
    def buffer(self) -> io.BytesIO:
        return self


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = gzip.compress(kineto(tmp_path / "x").read_bytes())
    monkeypatch.setattr("sys.stdin", Pipe(content))
    with gathered(["-"]) as inputs:
        spooled = inputs.paths[0]
        assert len(import_files(inputs.paths).kernels) == 1
    assert not spooled.exists()
    with pytest.raises(FusionScopeError, match="given twice"), gathered(["-", "-"]):
        pass


@needs_samples
def test_a_folder_of_the_two_rank_samples(tmp_path: Path) -> None:
    for rank in (0, 1):
        name = f"tp2_rank{rank}.kineto.json.gz"
        (tmp_path / name).write_bytes((SAMPLES / "h200_tp2_skew" / name).read_bytes())
    with gathered([tmp_path]) as inputs:
        trace = import_files(inputs.paths)
    assert dict(trace.kernels.groupby("rank").size()) == {0: 1056, 1: 1248}
