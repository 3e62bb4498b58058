"""Small traces in the profilers' own formats: two layers of GEMM, all-reduce and norm, replayed from a graph."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from typing import Any

NAMES = ("nvjet_gemm", "one_shot_all_reduce_kernel", "fused_add_rmsnorm_kernel") * 2
REPLAYS = 3
#: (start, duration) of each launch of a replay, ns.
TIMES = [(0, 10_000), (10_100, 2_000), (12_200, 3_000), (15_300, 10_000), (25_400, 2_000), (27_500, 3_000)]


def rows(rank: int, base: int = 1_000_000) -> list[tuple[str, int, int, int, int]]:
    """(name, start, end, correlation, node) of every launch of a rank."""
    return [
        (name, at := base + replay * 1_000_000 + start + rank, at + duration, 100 + replay, node)
        for replay in range(REPLAYS)
        for node, (name, (start, duration)) in enumerate(zip(NAMES, TIMES, strict=True))
    ]


def nsys(path: Path, pids: list[int]) -> None:
    """An Nsight Systems export: every process on a GPU of its own, graph nodes with ids."""
    path.unlink(missing_ok=True)
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)")
    db.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_NAME', 'NVIDIA Nsight Systems')")
    db.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    ids = {name: k for k, name in enumerate(dict.fromkeys([*NAMES, "cudaGraphLaunch_v10000"]), 1)}
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(k, name) for name, k in ids.items()])
    db.execute(
        'CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, "end", deviceId, streamId, correlationId, globalPid, '
        "demangledName, shortName, graphNodeId, graphId)"
    )
    db.execute('CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, "end", globalTid, correlationId, nameId)')
    for device, pid in enumerate(pids):
        for name, start, end, correlation, node in rows(device):
            values = (start, end, device, 7, correlation, pid << 24, ids[name], ids[name], (5 << 32) | node, 5)
            db.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * 10)})", values)
        for replay in range(REPLAYS):
            begin = 1_000_000 + replay * 1_000_000 - 5_000
            values = (begin, begin + 1_000, pid << 24 | pid, 100 + replay, ids["cudaGraphLaunch_v10000"])
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?)", values)
    db.commit()
    db.close()


def nsys_graphs(path: Path, pids: list[int]) -> None:
    """The same in graph mode: one row a replay, no kernels; each replay takes 30.4 us."""
    nsys(path, pids)
    db = sqlite3.connect(path)
    db.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")
    db.execute(
        'CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, "end", deviceId, contextId, streamId, correlationId, '
        "globalPid, graphId, graphExecId)"
    )
    for device, pid in enumerate(pids):
        for replay in range(REPLAYS):
            begin = 1_000_000 + replay * 1_000_000
            values = (begin, begin + 30_400, device, 1, 7, 100 + replay, pid << 24, 5, 6)
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?,?,?,?,?,?,?,?,?)", values)
    db.commit()
    db.close()


def rocprofv3(path: Path, pid: int, rank: int) -> None:
    """rocprofv3's JSON of one process on a GPU of its own: a replay's launches share its call's correlation."""
    symbols = {name: k for k, name in enumerate(dict.fromkeys(NAMES), 1)}
    kinds = [
        {"kind": "HIP_RUNTIME_API", "operations": ["hipGraphLaunch"]},
        {"kind": "KERNEL_DISPATCH", "operations": ["NONE", "COMPLETE"]},
    ]

    def record(kind: int, operation: int, start: int, end: int, correlation: int, **more: Any) -> dict[str, Any]:
        ids = {"internal": correlation, "external": 0}
        times = {"start_timestamp": start, "end_timestamp": end}
        return {
            "size": 1,
            "kind": kind,
            "operation": operation,
            "thread_id": pid,
            "correlation_id": ids,
            **times,
            **more,
        }

    size = {"x": 64, "y": 1, "z": 1}
    dispatches = [
        record(
            1, 1, start, end, correlation, stream_id={"handle": 3},
            dispatch_info={
                "size": 72, "agent_id": {"handle": 70 + rank}, "queue_id": {"handle": 8}, "kernel_id": symbols[name],
                "dispatch_id": place, "workgroup_size": size, "grid_size": size,
            },
        )
        for place, (name, start, end, correlation, _) in enumerate(rows(rank))
    ]  # fmt: skip
    calls = [record(0, 0, 995_000 + k * 1_000_000, 996_000 + k * 1_000_000, 100 + k) for k in range(REPLAYS)]
    agent = {"id": {"handle": 70 + rank}, "type": 2, "name": "gfx942", "product_name": "AMD Instinct MI300X"}
    process = {
        "metadata": {"pid": pid, "node": {"hostname": "h"}},
        "agents": [{**agent, "logical_node_id": 4 + rank}],
        "strings": {"buffer_records": kinds},
        "kernel_symbols": [
            {"kernel_id": k, "kernel_name": f"{name}.kd", "formatted_kernel_name": name} for name, k in symbols.items()
        ],
        "buffer_records": {"kernel_dispatch": dispatches, "hip_api": calls},
    }
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [process]}))


def kineto(path: Path, pid: int, rank: int) -> None:
    """A torch.profiler trace of one rank."""
    events: list[dict[str, Any]] = []
    for name, start, end, correlation, node in rows(rank):
        told = {"device": rank, "stream": 7, "correlation": correlation, "graph id": 5, "graph node id": 5 << 32 | node}
        common = {"ph": "X", "cat": "kernel", "name": name, "pid": rank, "tid": 7}
        events.append({**common, "ts": start / 1000, "dur": (end - start) / 1000, "args": told})
    for replay in range(REPLAYS):
        at = {"ts": 995 + replay * 1000, "dur": 1, "pid": pid, "tid": pid, "args": {"correlation": 100 + replay}}
        events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", **at})
    document = {"schemaVersion": 1, "baseTimeNanoseconds": 0, "traceEvents": events}
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text) if path.name.endswith(".gz") else text)
