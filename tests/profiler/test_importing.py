"""Several files as one run."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fusionscope.profiler import file_ranks
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.importing import file_digest, import_files, ranks_of

SAMPLES = Path(__file__).parents[2] / "../shared/samples"
needs_samples = pytest.mark.skipif(not SAMPLES.exists(), reason="../shared/samples is not here")
RANGES = "node_index_ranges_half_open"


def trace_file(path: Path, **fields: Any) -> Path:
    event = {"ph": "X", "cat": "kernel", "name": path.stem, "pid": 0, "tid": 7, "ts": 1, "dur": 2, **fields}
    path.write_text(json.dumps([event]))
    return path


def test_files_are_ranks_and_sites_go_to_each(tmp_path: Path) -> None:
    files = [trace_file(tmp_path / f"rank{rank}.json") for rank in (1, 0)]
    nodes = tmp_path / "n.json"
    nodes.write_text(json.dumps({"boundary": "ar_norm", RANGES: [[3, 5]]}))
    times = tmp_path / "t.csv"
    times.write_text("time_us\n5\n")
    told: list[tuple[int, int, str]] = []
    trace = import_files(files, nodes, str(times), progress=lambda *step: told.append(step))
    assert dict(zip(trace.kernels["name"], trace.kernels["rank"], strict=True)) == {"rank0": 0, "rank1": 1}
    assert list(trace.sites["rank"]) == [0, 0, 1, 1] and list(trace.sites["node"]) == [3, 4, 3, 4]
    # The file says no rank: it was the run's first.
    assert list(trace.timings["rank"]) == [0]
    assert told == [(0, 2, "rank1.json"), (1, 2, "rank0.json"), (2, 2, "")]
    assert ranks_of(trace) == [0, 1]


def test_sites_of_a_lone_rank(tmp_path: Path) -> None:
    nodes = tmp_path / "n.json"
    nodes.write_text(json.dumps([{"boundary": "a", RANGES: [[3, 4]]}, {"boundary": "a", "rank": 5, RANGES: [[8, 9]]}]))
    trace = import_files([trace_file(tmp_path / "run-rank-5.json")], nodes)
    assert list(trace.sites["rank"]) == [5, 5] and list(trace.sites["node"]) == [3, 8]


def test_two_files_claim_one_rank(tmp_path: Path) -> None:
    files = [trace_file(tmp_path / "a.json"), trace_file(tmp_path / "b.json")]
    with pytest.raises(FusionScopeError, match=r"a\.json and .*b\.json both claim rank 0"):
        import_files(files)


def test_no_file() -> None:
    with pytest.raises(FusionScopeError, match="No file was given"):
        import_files([])


def test_digest(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc" * 1_000_000)
    assert file_digest(path) == (hashlib.sha256(b"abc" * 1_000_000).hexdigest(), 3_000_000)
    with pytest.raises(FusionScopeError, match="cannot be read"):
        file_digest(tmp_path / "none")


@needs_samples
def test_the_h200_run() -> None:
    folder = SAMPLES / "h200_ar_norm"
    trace = import_files(
        [folder / "split.nsys.sqlite"], folder / "split.nodes.json", f"{folder}/untraced_abba.json:split"
    )
    in_sites = trace.kernels[trace.kernels["node"].isin(trace.sites["node"])]
    assert len(in_sites) == 12 * 45 * 2
    assert set(in_sites["name"]) == {"one_shot_all_reduce_kernel", "fused_add_rmsnorm_kernel"}
    assert set(trace.timings["arm"]) == {"split"} and set(trace.timings["rank"]) == {0}
    told = r"split\.nsys\.sqlite and .*split\.kineto\.json\.gz both claim rank 0.*--profiler nsys or --profiler torch;"
    with pytest.raises(FusionScopeError, match=told):
        import_files([folder / "split.nsys.sqlite", folder / "split.kineto.json.gz"])


@needs_samples
def test_two_kineto_files_are_two_ranks() -> None:
    folder = SAMPLES / "h200_tp2_skew"
    files = [folder / f"tp2_rank{rank}.kineto.json.gz" for rank in (0, 1)]
    trace = import_files(files, timings=str(folder / "untraced.json"))
    assert dict(trace.kernels.groupby("rank").size()) == {0: 1056, 1: 1248}
    assert trace.world_size == 2
    assert dict(trace.timings.groupby("rank").size()) == {0: 300, 1: 300}


def test_a_world_of_any_size_costs_no_memory() -> None:
    (said,) = file_ranks.missing([0, 3, 5, 2**31 - 1], 2**62)
    assert said.startswith(f"Ranks 1, 2, 4, 6 to {2**31 - 2}, {2**31} to {2**62 - 1} of {2**62} are missing")
    (said,) = file_ranks.missing(range(0, 100, 2), 0)
    assert "1, 3, 5" in said and "39 and 29 more of at least 99 are missing" in said
    assert file_ranks.missing([0, 1], 2) == [] == file_ranks.missing([], 8)
