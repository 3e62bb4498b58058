"""The parts of a capture that need neither torch nor a GPU: messages, commands, tables, what is missing."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from fusionscope.profiler.capture import choose, collect, cupti, launch, messages, nsys, plan
from fusionscope.profiler.capture.messages import Failure, Report, SiteNote, Timing
from fusionscope.profiler.capture.plan import CaptureError, CapturePlan
from fusionscope.profiler.progress import quiet
from fusionscope.profiler.readers.demangle import demangle


def a_plan(**changes: object) -> CapturePlan:
    given = {"model": "m", "tp": 4, "batch": 4, "context": 64, "device": "cuda", "profiler": "cupti", **changes}
    return CapturePlan(**given)  # type: ignore[arg-type]


def test_a_plan_comes_back_as_written(tmp_path: Path) -> None:
    made = a_plan(paths={"mhc_post:ffn_exit": "triton"}, layers=5, emulated=True)
    plan.write(made, tmp_path / "plan.json")
    assert plan.read(tmp_path / "plan.json") == made


def test_without_torch_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CaptureError, match=r"pip install 'fusionscope\[runtime\]'"):
        choose.make_plan("tiny", 2)


def test_ranks_start_through_torch_distributed_and_one_alone_without_it(tmp_path: Path) -> None:
    file, out = tmp_path / "plan.json", tmp_path
    alone = launch.worker_command(a_plan(emulated=True), file, "traced", out, ("nsys", "profile"))
    assert alone[:3] == ["nsys", "profile", sys.executable]
    many = launch.worker_command(a_plan(), file, "untraced", out)
    assert many[1:7] == [
        "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=4",
        f"--log-dir={out / 'launcher'}",
    ]  # fmt: skip
    assert "--no-python" not in many
    each = launch.worker_command(a_plan(), file, "traced", out, ("nsys", "profile"))
    assert each[7:11] == ["--no-python", "nsys", "profile", sys.executable]


def test_progress_lines_are_told_from_other_output(capsys: pytest.CaptureFixture[str]) -> None:
    messages.say(2, 6, "timing\tblocks")
    assert messages.parse(capsys.readouterr().out) == (2, 6, "timing\tblocks")
    assert messages.parse("torch says something\n") is None


def phase(tmp_path: Path, code: str) -> tuple[list[tuple[int, int, str]], Path]:
    seen: list[tuple[int, int, str]] = []
    log = tmp_path / "logs" / "log"
    command = [sys.executable, "-c", code]
    launch.run_phase(command, tmp_path, log, lambda *step: seen.append(step), {"FROM_PLAN": "1"})
    return seen, log


def test_a_phase_passes_progress_on_and_keeps_the_output(tmp_path: Path) -> None:
    code = f"import os; print('{messages.PROGRESS}1\\t2\\thalf'); print('said', os.environ['FROM_PLAN'])"
    seen, log = phase(tmp_path, code.replace("\t", "\\t"))
    assert seen == [(1, 2, "half")]
    assert "said 1" in log.read_text()


def test_the_last_line_of_a_failed_phase_is_told(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"code 3.*its last line was: the end.*logs/log"):
        phase(tmp_path, "import sys; print('the end'); sys.exit(3)")


def test_an_expected_failure_is_told_as_it_is(tmp_path: Path) -> None:
    messages.leave(Failure(rank=1, message="Connection lost.", expected=False), messages.failure_path(tmp_path, 1))
    messages.leave(Failure(rank=0, message="Use --tp 2.", expected=True), messages.failure_path(tmp_path, 0))
    with pytest.raises(CaptureError, match=r"^Use --tp 2\.$"):
        phase(tmp_path, "raise SystemExit(1)")


def test_a_fault_comes_with_the_log(tmp_path: Path) -> None:
    messages.leave(Failure(rank=1, message="Rank 1 failed.", expected=False), messages.failure_path(tmp_path, 1))
    with pytest.raises(CaptureError, match=r"^Rank 1 failed\. The whole output is in .*log\.$"):
        phase(tmp_path, "raise SystemExit(1)")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks at /proc")
def test_what_a_phase_started_ends_with_it(tmp_path: Path) -> None:
    """Also what went into a session of its own, as the ranks of torch.distributed.run do."""
    pids = tmp_path / "pids"
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
        f"start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); "
        f"open({str(pids)!r}, 'w').write(str(p.pid))"
    )
    launch.run_phase([sys.executable, "-c", code], tmp_path, tmp_path / "log", quiet, {})
    stat_file = Path("/proc") / pids.read_text() / "stat"
    assert not stat_file.exists() or stat_file.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_sites_become_one_row_per_node_numbered_by_boundary() -> None:
    sites = [
        SiteNote(boundary="moe_finalize", subtype="ffn_exit", layer=3, path="triton", first_node=4, last_node=6),
        SiteNote(boundary="mhc_post", subtype="ffn_exit", layer=3, path="split", first_node=5, last_node=6),
        SiteNote(boundary="mhc_post", subtype="attn_exit", layer=5, path="split"),
    ]
    sites[2:2] = [
        SiteNote(
            boundary="mhc_post",
            subtype="attn_exit",
            layer=4,
            path="split",
            declined="triton: no",
            first_node=9,
            last_node=10,
        )
    ]
    rows = collect.site_table(sites, rank=2, graph=7)
    keys = ["boundary", "site", "layer", "node", "declined"]
    assert list(rows[keys].itertuples(index=False, name=None)) == [
        ("moe_finalize", 0, 3, 4, ""),
        ("moe_finalize", 0, 3, 5, ""),
        ("mhc_post", 0, 3, 5, ""),
        ("mhc_post", 1, 4, 9, "triton: no"),
    ]
    assert (set(rows["rank"]), set(rows["graph"])) == ({2}, {7})
    assert len(collect.site_table([], 0, -1)) == 0


def test_timings_and_edges_keep_their_rank() -> None:
    reports = [Report(rank=1, process=9, timings=[Timing(block=3, duration_ns=5, source="untraced")])]
    row = collect.timing_table(reports).iloc[0]
    assert (row["rank"], row["process"], row["block"], row["duration_ns"], row["source"]) == (1, 9, 3, 5, "untraced")
    edges = collect.edge_table([(0, 1, False), (1, 2, True)], rank=1, graph=4)
    assert list(edges["programmatic"]) == [False, True]
    assert set(edges["graph"]) == {4}


def kernel(name: str, start: int, correlation: int, graph_node: int = 0, kind: str = "kernel") -> dict[str, object]:
    return {
        "kind": kind,
        "raw_name": name,
        "device": 0,
        "stream": 7,
        "start_ns": start,
        "end_ns": start + 10,
        "correlation": correlation,
        "graph_node": graph_node,
    }


def test_cupti_records_become_replays_of_nodes() -> None:
    graph = 6 << 32
    rows = [
        kernel("_Z3foov", 300, 2, graph),
        kernel("b", 310, 2, graph + 1),
        kernel("_Z3foov", 100, 5, graph),
        kernel("b", 110, 5, graph + 1),
        kernel("Memset", 90, 4, kind="memset"),
    ]
    calls = [
        {"thread": 1, "start_ns": 50, "end_ns": 60, "correlation": 5},
        {"thread": 1, "start_ns": 200, "end_ns": 210, "correlation": 2},
        {"thread": 1, "start_ns": 40, "end_ns": 45, "correlation": 4},
        {"thread": 1, "start_ns": 900, "end_ns": 901, "correlation": 77},
    ]
    kernels, launches = cupti.tables(rows, calls, rank=3)
    columns = ["kind", "name", "raw_name", "graph", "node", "replay", "duration_ns"]
    assert list(kernels[columns].itertuples(index=False, name=None)) == [
        ("memset", "Memset", "Memset", -1, -1, -1, 10),
        ("kernel", "foo()", "_Z3foov", 6, 0, 0, 10),
        ("kernel", "b", "b", 6, 1, 0, 10),
        ("kernel", "foo()", "_Z3foov", 6, 0, 1, 10),
        ("kernel", "b", "b", 6, 1, 1, 10),
    ]
    assert list(launches[["correlation", "is_graph"]].itertuples(index=False, name=None)) == [
        (4, False),
        (5, True),
        (2, True),
    ]
    assert set(kernels["rank"]) == {3}
    assert cupti.tables([], [], 0)[0].empty


def test_names_are_demangled_where_they_are_mangled() -> None:
    assert demangle("_Z3fooIiEvT_") == "void foo<int>(int)"
    assert demangle("_Zbroken") == "_Zbroken"
    assert demangle("triton_kernel_0") == "triton_kernel_0"


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def no_nsys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without nsys; PATH leads to an empty folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("NSYS", raising=False)
    monkeypatch.setattr(nsys, "_INSTALLATIONS", (f"{tmp_path}/opt/*/host/*/nsys",))
    return tmp_path


def test_nsys_is_found_in_the_environment_on_path_and_in_installations(
    no_nsys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nsys.find() is None
    executable(no_nsys / "opt" / "2024.9.0" / "host" / "target" / "nsys", "")
    newest = executable(no_nsys / "opt" / "2024.10.1" / "host" / "target" / "nsys", "")
    assert nsys.find() == newest
    on_path = executable(no_nsys / "bin" / "nsys", "")
    assert nsys.find() == on_path
    monkeypatch.setenv("NSYS", str(newest))
    assert nsys.find() == newest
    monkeypatch.setenv("NSYS", "/no/such/nsys")
    assert nsys.find() is None
    assert "/no/such/nsys" in nsys.unavailable()


def test_without_nsys_the_error_says_where_to_get_it(no_nsys: Path) -> None:
    with pytest.raises(CaptureError, match=r"developer\.nvidia\.com/nsight-systems"):
        nsys.require()


def test_an_importer_that_cannot_start_names_library_and_package(
    no_nsys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = executable(no_nsys / "opt" / "2025.1.0" / "host" / "target" / "nsys", "")
    executable(found.parent.parent / "linux-desktop" / "QdstrmImporter", "")
    said = "libdw.so.1 => not found\\n\\tlibc.so.6 => /lib/libc.so.6 (0x1)\\n\\tlibelf.so.1 => not found"
    executable(no_nsys / "bin" / "ldd", f"#!/bin/sh\nprintf '\\t{said}\\n'\n")
    monkeypatch.setenv("PATH", f"{no_nsys / 'bin'}:/bin:/usr/bin")
    assert nsys.missing_libraries(found) == ["libdw.so.1", "libelf.so.1"]
    with pytest.raises(CaptureError, match=r"libdw\.so\.1, libelf\.so\.1.*apt-get install libdw1 libelf1"):
        nsys.require()
    (no_nsys / "rank0.qdstrm").write_text("")
    with pytest.raises(CaptureError, match=r"cannot import it.*libdw\.so\.1"):
        nsys.check_output(found, no_nsys, 0)


def test_each_rank_of_several_has_a_trace_of_its_own(tmp_path: Path) -> None:
    assert nsys.prefix(Path("nsys"), tmp_path, 1)[-1] == f"--output={tmp_path}/rank0"
    assert nsys.prefix(Path("nsys"), tmp_path, 4)[-1] == f"--output={tmp_path}/rank%q{{RANK}}"
    with pytest.raises(CaptureError, match="rank 1"):
        nsys.check_output(Path("nsys"), tmp_path, 1)


def test_the_pass_of_whole_graphs_gives_each_rank_its_times(tmp_path: Path) -> None:
    import sqlite3

    assert "--cuda-graph-trace=graph" in nsys.prefix(Path("nsys"), tmp_path, 2, "graph")
    db = sqlite3.connect(nsys.trace_file(tmp_path, 0))
    db.executescript(
        """CREATE TABLE META_DATA_EXPORT (name, value); CREATE TABLE StringIds (id, value);
        INSERT INTO StringIds VALUES (1, 'cudaGraphLaunch_v10000');
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, "end", globalTid, correlationId, nameId);
        CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE
          (start, "end", deviceId, contextId, streamId, correlationId, globalPid, graphId, graphExecId);"""
    )
    for replay in range(4):
        start = 1000 * replay
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,1)", (start, start + 1, 1 << 24, replay))
        row = (start + 10, start + 500 - replay, 0, 1, 7, replay, 1 << 24, 3, 4)
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?,?,?,?,?,?,?,?,?)", row)
    db.commit()
    db.close()
    [found], missing = collect.graph_timings(a_plan(tp=2, graph_pass=True), tmp_path)
    # The first replay is warm-up here as well.
    assert found["duration_ns"].tolist() == [489, 488, 487] and set(found["source"]) == {"graph-level trace"}
    assert len(missing) == 1 and "rank 1" in missing[0]
    assert collect.graph_timings(a_plan(), None) == ([], [])
