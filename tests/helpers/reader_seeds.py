"""A small valid input or several for every reader, what reads it, and whether what was read holds together."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import fake_traces
import nsys_files
import perfetto_file
import rocprof_files as rocprof
import rocprofv3_files as rocprofv3
from mutations import mutated
from rocpd_file import Writer
from rpd_file import rpd
from small_inputs import BENCH, SGLANG, VLLM

from fusionscope.analysis import rulefile
from fusionscope.profiler import packed
from fusionscope.profiler.readers import read_provenance, read_timings, read_trace
from fusionscope.profiler.readers.answers import read_answers
from fusionscope.profiler.readers.bench_csv import read_bench
from fusionscope.profiler.readers.serving_json import read_serving
from fusionscope.profiler.runinfo import Decline, RunInfo
from fusionscope.profiler.store import Store
from fusionscope.profiler.trace import TABLES, Trace

#: Takes the place of nsys: an "export" is the report itself, if that is a database, else nsys' complaint.
_NSYS = """#!/bin/sh
case "$(head -c 6 "$5" | tr -d '\\0')" in
SQLite) exec cp "$5" "${3#--output=}" ;;
esac
head -c 400 "$5" >&2
exit 1
"""


@dataclass(frozen=True)
class Seed:
    """Files of one input; `entry` is what the reader is given: one of them, or "" for the folder."""

    files: dict[str, bytes]
    entry: str = ""


@dataclass(frozen=True)
class Reader:
    """How one kind of input is made and read."""

    make: Callable[[Path], None]
    read: Callable[[Path], object]
    #: The file that is given; "" for the folder, "*" for each file by itself.
    entry: str = "*"
    #: Whether the reader unpacks gzip and zstd.
    packed: bool = False

    def seeds(self) -> list[Seed]:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            self.make(folder)
            files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
        # A mangled name costs a process each time, and demangling is not what is tried here.
        files = {name: content.replace(b"_Z4gemmi", b"gemm_int") for name, content in files.items()}
        if self.entry == "*":
            return [Seed({one: content}, one) for one, content in files.items()]
        return [Seed(files, self.entry)]


@cache
def seeds(reader: str) -> list[Seed]:
    return READERS[reader].seeds()


def damaged(reader: str, random: Random) -> Seed:
    """One of the reader's inputs with one file of it damaged."""
    seed = random.choice(seeds(reader))
    which = random.choice(list(seed.files))
    return Seed({**seed.files, which: mutated(seed.files[which], random, READERS[reader].packed)}, seed.entry)


def read(reader: str, seed: Seed, folder: Path) -> None:
    """Read an input from a folder that is empty before and after. Raises whatever the reader raises."""
    try:
        for name, content in seed.files.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        found = READERS[reader].read(folder / seed.entry)
        if isinstance(found, Trace):
            holds_together(found)
    finally:
        for name in seed.files:
            (folder / name).unlink(missing_ok=True)


def holds_together(trace: Trace) -> None:
    """Asserts what every table promises, whatever file it came from."""
    for name, schema in TABLES.items():
        assert {c: str(getattr(trace, name)[c].dtype) for c in schema} == schema, name
    kernels = trace.kernels
    assert (kernels["duration_ns"] >= 0).all() and (kernels["rank"] >= 0).all()
    assert (kernels.loc[kernels["untimed"], "duration_ns"] == 0).all()
    assert all(isinstance(text, str) for text in (*trace.warnings, *trace.machine.values()))


def _nsys(folder: Path) -> None:
    path = folder / "node.sqlite"
    fake_traces.nsys(path, [55])
    db = sqlite3.connect(path)
    db.executescript(
        f"""CREATE TABLE NVTX_EVENTS (start, "end", globalTid, eventType, text, textId);
        INSERT INTO NVTX_EVENTS VALUES (1, 9000000, {55 << 24 | 55}, 59, 'decode', NULL);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, "end", deviceId, streamId, correlationId, globalPid, copyKind);
        INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1, 5, 0, 7, 9, {55 << 24}, 1);
        CREATE TABLE TARGET_INFO_GPU (name);
        INSERT INTO TARGET_INFO_GPU VALUES ('NVIDIA H200');"""
    )
    db.commit()
    db.close()
    db = sqlite3.connect(folder / "graph.sqlite")
    db.executescript(
        f"""CREATE TABLE StringIds (id, value);
        INSERT INTO StringIds VALUES (2, 'cudaGraphLaunch_v10000');
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, "end", globalTid, correlationId, nameId);
        INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, {55 << 24}, 9, 2);
        CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, "end", deviceId, streamId, correlationId, globalPid,
            graphId);
        INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (10, 60, 0, 7, 9, {55 << 24}, 4);"""
    )
    db.commit()
    db.close()


def _kineto(folder: Path) -> None:
    fake_traces.kineto(folder / "gpu.json", 55, 0)
    events = [
        {"ph": "X", "cat": c, "name": n, "pid": 5, "tid": 5, "ts": 10 * k + 0.5, "dur": 4, "args": {"External id": k}}
        for k, (c, n) in enumerate([("cpu_op", "aten::mm"), ("user_annotation", "step"), ("cpu_op", "gloo:all_reduce")])
    ]
    told = {"rank": 0, "world_size": 2, "backend": "gloo"}
    (folder / "cpu.json").write_text(json.dumps({"traceEvents": events, "distributedInfo": told}))


def _nsys_report(path: Path) -> object:
    with _environment(NSYS=str(_fake_nsys())):
        return read_trace(path)


@cache
def _fake_nsys() -> Path:
    # Cleared away when the process ends.
    folder = tempfile.TemporaryDirectory(prefix="fusionscope-test-")
    atexit.register(folder.cleanup)
    program = Path(folder.name) / "nsys"
    program.write_text(_NSYS)
    program.chmod(0o755)
    return program


@contextlib.contextmanager
def _environment(**values: str) -> Any:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def _report(folder: Path) -> None:
    fake_traces.nsys(folder / "x.sqlite", [55])
    (folder / "x.sqlite").rename(folder / "x.nsys-rep")


def _rocprofv3_csv(folder: Path) -> None:
    kernels = [rocprofv3.csv_kernel(f"a<{i}>", 10 * i, 10 * i + 5, 1 + i // 3, i) for i in range(1, 9)]
    rocprofv3.write_csv(folder / "55_kernel_trace.csv", rocprofv3.NEW, *kernels)
    calls = [f"HIP_RUNTIME_API,hipGraphLaunch,55,77,{i},{i},{i + 1}" for i in range(1, 4)]
    rocprofv3.write_csv(folder / "55_hip_api_trace.csv", rocprofv3.API, *calls)
    rocprofv3.write_csv(folder / "55_marker_api_trace.csv", rocprofv3.API, "MARKER_CORE_API,step,55,77,1,1,90")
    copies = "Kind,Direction,Source_Agent_Id,Destination_Agent_Id,Correlation_Id,Start_Timestamp,End_Timestamp"
    rocprofv3.write_csv(folder / "55_memory_copy_trace.csv", copies, "MEMORY_COPY,H2D,Agent 0,Agent 4,9,2,4")
    rocprofv3.write_csv(folder / "55_agent_info.csv", "Agent_Type,Product_Name", "CPU,EPYC", "GPU,AMD Instinct MI300X")


def _rocprofv3_json(folder: Path) -> None:
    records = {
        "kernel_dispatch": [
            rocprofv3.dispatch(6, 25, 30, 8, graph_exec_id=2, graph_node_id=1),
            rocprofv3.dispatch(6, 1, 2, 7),
        ],
        "hip_api": [rocprofv3.record(1, 2, 5, 6, 7), rocprofv3.record(1, 1, 9, 10, 8)],
        "marker_api": [rocprofv3.record(2, 1, 3, 40, 1)],
        "memory_copy": [rocprofv3.record(3, 1, 1, 4, 3, dst_agent_id={"handle": 70})],
    }
    rocprofv3.write_json(folder / "x_results.json", rocprofv3.process(55, **records))


def _rocpd(folder: Path) -> None:
    regions = [("HIP_RUNTIME_API_EXT", "hipGraphLaunch", 0, 1, 3), ("MARKER_CORE_API", "x", 1, 2, 4)]
    kernels = [("a", 1, 2, 3), ("b", 4, 5, 3), (None, 6, 7, None)]
    Writer(folder / "x.db", kernels=kernels, regions=regions, copies=[("H2D", 1, 3)]).write()


def _rocprof(folder: Path) -> None:
    names = ("gemm(int)", "norm<a, b>(int)")
    rows = [rocprof.v1(name, *times) for name, times in zip(names, rocprof.TIMES, strict=True)]
    rocprof.write(folder / "v1.csv", rocprof.V1, *rows)
    lines = [rocprof.TEXT.format(i, n, *t, 0) for i, (n, t) in enumerate(zip(names, rocprof.TIMES, strict=True))]
    rocprof.write(folder / "v2.txt", *lines)
    v2 = '{},4,1,55,55,64,64,0,0,8,0,16,64,"a, b",{},{},{}'
    rocprof.write(folder / "v2.csv", rocprof.V2, *(v2.format(i, *t, i) for i, t in enumerate(rocprof.TIMES)))
    (folder / "v1.json").write_text(json.dumps({"traceEvents": rocprof.v1_events()}))
    rocprof.v1_database(folder / "v1.db")


def _rpd(folder: Path) -> None:
    calls = [("hipLaunchKernel", 9), ("hipGraphLaunch", 9), ("UserMarker", 9)]
    rpd(folder / "x.rpd", calls, [("a", "KernelExecution", 1, 2, 1), ("b", "Task", 3, 4, 2)])


def _perfetto(folder: Path) -> None:
    perfetto_file.rocprofv3().write(folder / "x.pftrace")


def _timings(folder: Path) -> None:
    rows = [[1, block, arm, 950.123 + block] for block in range(3) for arm in ("split", "fused")]
    (folder / "abba.json").write_text(json.dumps({"unit": "us", "rows": rows}))
    (folder / "ranks.json").write_text(json.dumps({"unit": "us", "rows_by_rank": {"0": [1.5, 2], "1": [[0, "a", 3]]}}))
    (folder / "named.json").write_text(json.dumps([{"rank": 0, "block": 1, "time_us": 3.25}]))
    (folder / "t.csv").write_text("rank,block,time_us\n0,0,951.5\n0,1,950.25\n")


def _read_timings(path: Path) -> object:
    return read_timings(f"{path}:split" if path.name == "abba.json" else str(path))


def _provenance(folder: Path) -> None:
    span = {"node_index_ranges_half_open": [[3, 5], [9, 10]]}
    entries = [
        {"boundary": "mhc_post", "subtype": "attn_exit", "layer": [0, 1], "path": "split", **span},
        {"boundary": "moe_finalize", "graph": 4, "rank": 1, "layer": 0, "declined": "no", **span},
    ]
    (folder / "x.nodes.json").write_text(json.dumps(entries))
    marks = [{"boundary": "ar_norm", "site": k, "capture": 0, "layer": k, "first": k, "last": k + 2} for k in range(3)]
    log = [{"fusionscope_marks": 1, "rank": 3, "pid": 5}, *marks]
    (folder / "marks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))


def _serving(folder: Path) -> None:
    (folder / "s.jsonl").write_text(json.dumps(SGLANG) + "\n" + json.dumps(SGLANG) + "\n")
    (folder / "v.json").write_text(json.dumps(VLLM))


def _answers(folder: Path) -> None:
    rows = [{"doc_id": k, "filter": "strict", "exact_match": float(k % 2)} for k in range(5)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _run(folder: Path) -> Path:
    """A stored run in a folder of that name."""
    fake_traces.nsys(folder / "x.sqlite", [55])
    trace = read_trace(folder / "x.sqlite")
    (folder / "x.sqlite").unlink()
    declines = [Decline(boundary="ar_norm", layer=3)]
    saved = Store(folder).save(RunInfo(name="n", model="m", tp=4, tags=["main"], declines=declines), trace)
    return saved.path.rename(folder / "run")


def _packed(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as other:
        run = _run(Path(other))
        packed.pack(run, folder / "run.tar")
        packed.pack(run, folder / "run.zip")


def _unpack(path: Path) -> object:
    try:
        return Store(path.parent).load(str(path))
    finally:
        if opened := packed._open.pop(str(path), None):
            opened.cleanup()


def _rules(folder: Path) -> None:
    for name in ("boundaries.toml", "attention.toml"):
        (folder / name).write_text(rulefile.shipped_text(name))
    role = '[[role]]\nrole = "mine"\nvendor = "amd"\npattern = \'(^|::)my_(add|norm)[a-z]*_kernel\\b\'\n'
    (folder / "mine.toml").write_text(role)


def _rules_and_matches(path: Path) -> object:
    roles, boundaries = rulefile.parse(str(path), rulefile.text_of(path))
    for role in roles:
        role.pattern.search("my_norm" * 300)
    return boundaries


def _loaded(path: Path) -> object:
    return Store(path).load(f"{path}/run")


READERS = {
    "nsys_sqlite": Reader(_nsys, read_trace, packed=True),
    "nsys_report": Reader(_report, _nsys_report),
    "nsys_parquet": Reader(lambda folder: nsys_files.parquet_folder(folder / "x", False) and None, read_trace, "x"),
    "kineto": Reader(_kineto, read_trace, packed=True),
    "rocprofv3_csv": Reader(_rocprofv3_csv, read_trace, "55_kernel_trace.csv", packed=True),
    "rocprofv3_json": Reader(_rocprofv3_json, read_trace, packed=True),
    "rocpd": Reader(_rocpd, read_trace, packed=True),
    "rocprof": Reader(_rocprof, read_trace, packed=True),
    "rpd": Reader(_rpd, read_trace, packed=True),
    "perfetto": Reader(_perfetto, read_trace, packed=True),
    "timings": Reader(_timings, _read_timings),
    "provenance": Reader(_provenance, read_provenance),
    "serving": Reader(_serving, lambda path: read_serving([path])),
    "bench": Reader(lambda folder: (folder / "bench.csv").write_text(BENCH) and None, read_bench),
    "answers": Reader(_answers, read_answers),
    "run_folder": Reader(lambda folder: _run(folder) and None, _loaded, ""),
    "packed_run": Reader(_packed, _unpack),
    "rules": Reader(_rules, _rules_and_matches),
}
