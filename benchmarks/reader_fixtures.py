"""Large traces made by rule, for the readers' benchmark: torch.profiler, Nsight SQLite, rocprofv3 CSV, JSON, database
and Perfetto, RPD, rocprof v2's text.

The mix is that of a served decode: graph replays of 500 launches, each with the host's call, operators and Python
frames around it, and the flow events that Kineto writes for every launch.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/helpers"))

from perfetto_file import PROCESS, STREAM, THREAD, Recording
from rocpd_file import Writer
from rocprof_files import TEXT
from rpd_file import SCHEMA

NAMES = [
    *(f"void gemm_kernel_{i}<cutlass::half_t, cutlass::layout::RowMajor, {i}, 128, 64>(Params)" for i in range(20)),
    "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*, __nv_bfloat16*, unsigned int)",
    "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 4>(sglang::RankData*, sglang::RankSignals)",
    "void act_and_mul_kernel<c10::BFloat16>(c10::BFloat16*, c10::BFloat16 const*, int)",
]
LAUNCHES = 500


def kineto(path: Path, events: int) -> None:
    """A torch.profiler trace of about `events` events, 300 bytes each; times as Kineto writes them, near 5e12 us."""
    base = 5_109_432_000_000_000
    head = (
        '{\n  "schemaVersion": 1,\n  "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],\n'
        '  "baseTimeNanoseconds": 1790857026000000000,\n  "traceEvents": [\n'
    )
    with open(path, "w") as file:
        file.write(head)
        for number in range(events // 8):
            file.write("".join(_kineto_group(base + number * 6_500, number)))
        file.write(
            '  {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "ts": 0, "args": {"name": "python"}}\n]\n}\n'
        )


def _us(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _kineto_group(at: int, number: int) -> list[str]:
    """Eight events: two launches of a graph, the host's call at its start, and what stands around."""
    rows = []
    for turn in (0, 1):
        launch = 2 * number + turn
        replay, node = divmod(launch, LAUNCHES)
        name, start = NAMES[node % len(NAMES)], at + turn * 3_200
        rows.append(
            f'  {{\n    "ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": 7,\n'
            f'    "ts": {_us(start)}, "dur": {_us(2_000 + node % 900)},\n    "args": {{\n'
            f'      "External id": {launch}, "queued": 0, "device": 0, "context": 1,\n      "stream": 7, '
            f'"correlation": {replay + 1},\n      "registers per thread": 168,\n      "shared memory": 164292,\n'
            f'      "blocks per SM": 0.727273,\n      "warps per SM": 8.727273,\n      "grid": [4, 24, 1],\n'
            f'      "block": [384, 1, 1],\n      "est. achieved occupancy %": 0,\n      "graph id": 3, '
            f'"graph node id": {(3 << 32) + node}\n    }}\n  }},\n'
        )
        rows.append(
            f'  {{\n    "ph": "f", "id": {launch}, "pid": 0, "tid": 7, "ts": {_us(start)},\n'
            '    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  },\n'
        )
        rows.append(
            f'  {{\n    "ph": "X", "cat": "cpu_op", "name": "aten::op_{node % 60}", "pid": 789, "tid": 789,\n'
            f'    "ts": {_us(start - 900)}, "dur": {_us(700)},\n    "args": {{\n      "External id": {launch},'
            f'"Record function id": 0, '
            f'"Ev Idx": {launch}, "Sequence number": {launch}, "Fwd thread id": 0\n    }}\n  }},\n'
        )
        if turn == 0 and node == 0:
            kind, called = "cuda_runtime", "cudaGraphLaunch"
        else:
            kind, called = (
                ("cuda_runtime", "cudaEventQuery") if turn else ("python_function", f"model.py({node}): forward")
            )
        rows.append(
            f'  {{\n    "ph": "X", "cat": "{kind}", "name": "{called}", "pid": 789, "tid": 789,\n'
            f'    "ts": {_us(start - 600)}, "dur": {_us(500)},\n    "args": {{\n      "Python parent id": '
            f'{launch - 1}, "Python id": '
            f'{launch}, "Python module id": 3, "cbid": 311, "correlation": {replay + 1}\n    }}\n  }},\n'
        )
    return rows


def nsys(path: Path, kernels: int) -> None:
    """An Nsight Systems export in node mode with `kernels` kernel rows."""
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript(
        """
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
        CREATE TABLE TARGET_INFO_GPU (name TEXT);
        CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
          greenContextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER,
          shortName INTEGER, mangledName INTEGER, launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER,
          gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER,
          staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, localMemoryPerThread INTEGER, graphNodeId INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
          correlationId INTEGER, nameId INTEGER, returnValue INTEGER, callchainId INTEGER);
        INSERT INTO TARGET_INFO_GPU VALUES ('NVIDIA H200');
        INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '2025.3.1');
        """
    )
    names = [*NAMES, "cudaGraphLaunch_v10000"]
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
    process = (1 << 48) + (500 << 24)
    rows = (
        (
            10**12 + n * 3_000, 10**12 + n * 3_000 + 2_000 + n % 900, 0, 1, None, 7, 1 + n // LAUNCHES, process,
            n % LAUNCHES % len(NAMES), n % LAUNCHES % len(NAMES), None, 1, 0, 168, 4, 24, 1, 384, 1, 1, 0, 164292, 0,
            (3 << 32) + n % LAUNCHES,
        )
        for n in range(kernels)
    )  # fmt: skip
    connection.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * 24)})", rows)
    calls = (
        (start - 5_000, start - 1_000, 0, process + 500, 1 + n, len(NAMES), 0, None)
        for n, start in enumerate(range(10**12, 10**12 + kernels * 3_000, 3_000 * LAUNCHES))
    )  # fmt: skip
    connection.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?,?,?,?)", calls)
    connection.commit()
    connection.close()


def rocprofv3(path: Path, kernels: int) -> None:
    """A rocprofv3 kernel trace CSV with `kernels` rows."""
    with open(path, "w") as file:
        file.write(
            '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",'
            '"Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count",'
            '"Accum_VGPR_Count","SGPR_Count","Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X",'
            '"Grid_Size_Y","Grid_Size_Z"\n'
        )
        for n in range(kernels):
            node, start = n % LAUNCHES, 10**12 + n * 3_000
            file.write(
                f'"KERNEL_DISPATCH","Agent 4",1,0,1741,{n + 1},{node % 23},"{NAMES[node % len(NAMES)]}",'
                f"{1 + n // LAUNCHES},{start},{start + 2_000 + n % 900},0,0,32,4,48,256,1,1,65536,1,1\n"
            )


def rocprofv3_json(path: Path, kernels: int) -> None:
    """A rocprofv3 results.json of one process with `kernels` dispatches, a graph's launch for every 500 of them and
    another HIP call beside each."""
    symbols = ",".join(
        f'{{"kernel_id":{n},"kernel_name":"{name}.kd","formatted_kernel_name":"{name}"}}'
        for n, name in enumerate(NAMES)
    )
    head = (
        '{"rocprofiler-sdk-tool":[{"metadata":{"pid":908,"node":{"hostname":"h"}},"agents":[{"id":{"handle":37946},'
        '"type":2,"name":"gfx942","product_name":"AMD Instinct MI300X","logical_node_id":4}],"strings":'
        '{"buffer_records":[{"kind":"HIP_RUNTIME_API","operations":["hipGraphLaunch","hipGetDevice"]},'
        '{"kind":"KERNEL_DISPATCH","operations":["NONE","COMPLETE"]}]},"kernel_symbols":[' + symbols + "],"
    )
    with open(path, "w") as file:
        file.write(head + '"buffer_records":{"kernel_dispatch":[')
        for n in range(kernels):
            node, start = n % LAUNCHES, 10**12 + n * 3_000
            end, comma = start + 2_000 + n % 900, "," if n else ""
            file.write(
                f'{comma}{{"size":184,"kind":1,"operation":1,"thread_id":908,"correlation_id":{{"internal":'
                f'{1 + n // LAUNCHES},"external":0}},"start_timestamp":{start},"end_timestamp":{end},'
                '"dispatch_info":{"size":72,"agent_id":{"handle":37946},"queue_id":{"handle":16},"kernel_id":'
                f'{node % len(NAMES)},"dispatch_id":{n + 1},"private_segment_size":0,"group_segment_size":0,'
                '"workgroup_size":{"x":512,"y":1,"z":1},"grid_size":{"x":512,"y":1,"z":1}},"stream_id":{"handle":0}}'
            )
        file.write('],"hip_api":[')
        for n in range(kernels):
            launch, at = n % LAUNCHES == 0, 10**12 + n * 3_000 - 5_000
            correlation, comma = 1 + n // LAUNCHES if launch else kernels + n, "," if n else ""
            file.write(
                f'{comma}{{"size":56,"kind":0,"operation":{0 if launch else 1},"thread_id":908,"correlation_id":'
                f'{{"internal":{correlation},"external":0}},"start_timestamp":{at},"end_timestamp":{at + 900}}}'
            )
        file.write("]}}]}\n")


def rocpd(path: Path, kernels: int) -> None:
    """A rocprofv3 database with a tenth of `kernels` dispatches, since each is written with a symbol of its own: a
    process has as many symbols as the libraries that it loaded have kernels."""
    path.unlink(missing_ok=True)
    rows: list[tuple[str | None, int, int, int | None]] = [
        (NAMES[n % len(NAMES)], start, start + 2_000 + n % 900, 1 + n // LAUNCHES)
        for n, start in enumerate(range(10**12, 10**12 + kernels // 10 * 3_000, 3_000))
    ]
    launches = [("HIP_RUNTIME_API_EXT", "hipGraphLaunch", 10**12 + n, 10**12 + n + 1, 1 + n) for n in
                range(1 + len(rows) // LAUNCHES)]  # fmt: skip
    Writer(path, kernels=rows, regions=launches).write()


def perfetto(path: Path, kernels: int) -> None:
    """A rocprofv3 .pftrace with a tenth of `kernels` dispatches, each of two packets and ten annotations as rocprofv3
    writes them, and a graph's launch for every 500 of them."""
    recording = Recording()
    recording.track(PROCESS, pid=55)
    recording.track(STREAM, PROCESS)
    recording.track(THREAD, pid=55, tid=77)
    for n in range(kernels // 10):
        start, correlation = 10**12 + n * 3_000, 1 + n // LAUNCHES
        if n % LAUNCHES == 0:
            recording.slice("hip_api", "hipGraphLaunch", start - 5_000, start - 1_000, THREAD, corr_id=correlation)
        end = start + 2_000 + n % 900
        recording.slice(
            "kernel_dispatch", NAMES[n % LAUNCHES % len(NAMES)], start, end, begin_ns=start, end_ns=end,
            delta_ns=end - start, kind=11, agent=4, corr_id=correlation, queue=1, stream_ID=2, tid=77, kernel_id=n % 23,
        )  # fmt: skip
    recording.write(path)


def rpd(path: Path, kernels: int) -> None:
    """An RPD file with `kernels` operations of graphs, and a host's launch for every 500 of them."""
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.executescript(SCHEMA)
    texts = [*NAMES, "KernelExecution", "hipGraphLaunch", ""]
    connection.executemany("INSERT INTO rocpd_string (id, string) VALUES (?, ?)", enumerate(texts, 1))
    described, task, launch, nothing = len(NAMES), len(NAMES) + 1, len(NAMES) + 2, len(NAMES) + 3
    calls = ((1 + n, 55, 77, 10**12 + n * 1_500_000 - 9_000, 10**12 + n * 1_500_000 - 5_000, launch, nothing)
             for n in range(1 + kernels // LAUNCHES))  # fmt: skip
    connection.executemany("INSERT INTO rocpd_api VALUES (?,?,?,?,?,?,?)", calls)
    starts = enumerate(range(10**12, 10**12 + kernels * 3_000, 3_000))
    ops = ((1 + n, 0, 1, 0, 0, start, start + 2_000 + n % 900, 1 + n % LAUNCHES % described, task)
           for n, start in starts)  # fmt: skip
    connection.executemany("INSERT INTO rocpd_op VALUES (?,?,?,?,?,?,?,?,?)", ops)
    links = ((1 + n, 1 + n // LAUNCHES, 1 + n) for n in range(kernels))
    connection.executemany("INSERT INTO rocpd_api_ops VALUES (?,?,?)", links)
    connection.commit()
    connection.close()


def rocprof_text(path: Path, kernels: int) -> None:
    """What rocprof v2 prints of `kernels` dispatches."""
    with open(path, "w") as file:
        for n in range(kernels):
            name, start = NAMES[n % LAUNCHES % len(NAMES)], 10**12 + n * 3_000
            file.write(TEXT.format(n, name, start, start + 2_000 + n % 900, 1 + n // LAUNCHES) + "\n")
