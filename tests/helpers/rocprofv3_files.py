"""Small traces of rocprofv3: its CSV of three generations, and its JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

#: As written in 2024-10, in 2025-08, and since Duration_ns and the graph's ids came.
OLD = (
    "Kind,Agent_Id,Queue_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,Correlation_Id,Start_Timestamp,End_Timestamp,"
    "Private_Segment_Size,Group_Segment_Size,Workgroup_Size_X,Workgroup_Size_Y,Workgroup_Size_Z,Grid_Size_X,"
    "Grid_Size_Y,Grid_Size_Z"
)
NEW = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",'
    '"Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"'
)
LATER = (
    "Guid,Kind,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,Correlation_Id,Start_Timestamp,"
    "End_Timestamp,Duration_ns,Graph_Exec_Id,Graph_Node_Id,Grid_Size_X"
)
API = "Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp"


def csv_kernel(name: str, start: int, end: int, correlation: int, dispatch: int = 1, agent: str = "Agent 4") -> str:
    return f'"KERNEL_DISPATCH","{agent}",1,2,77,{dispatch},9,"{name}",{correlation},{start},{end},' + ",".join(
        ["0"] * 11
    )


def write_csv(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


#: `kind` counts in this list, which another version has in another order.
KINDS = [
    {"kind": "NONE", "operations": []},
    {"kind": "HIP_RUNTIME_API", "operations": ["hipMalloc", "hipGraphLaunch", "hipLaunchKernel"]},
    {"kind": "MARKER_CORE_API", "operations": ["roctxMarkA", "roctxThreadRangeA"]},
    {"kind": "MEMORY_COPY", "operations": ["NONE", "MEMORY_COPY_HOST_TO_DEVICE"]},
    {"kind": "KERNEL_DISPATCH", "operations": ["NONE", "COMPLETE"]},
]


def record(kind: int, operation: int, start: int, end: int, correlation: int, **more: Any) -> dict[str, Any]:
    ids = {"internal": correlation, "external": 0}
    times = {"start_timestamp": start, "end_timestamp": end}
    return {"size": 1, "kind": kind, "operation": operation, "thread_id": 9, "correlation_id": ids, **times, **more}


def dispatch(kernel: int, start: int, end: int, correlation: int, agent: int = 70, **more: Any) -> dict[str, Any]:
    size = {"x": 64, "y": 1, "z": 1}
    queue = {"handle": 2**64 - 8}
    info = {"size": 72, "agent_id": {"handle": agent}, "queue_id": queue, "kernel_id": kernel, "dispatch_id": 1}
    where = {"dispatch_info": {**info, "workgroup_size": size, "grid_size": size}, "stream_id": {"handle": 3}}
    return record(4, 1, start, end, correlation, **where, **more)


def process(pid: int, agent: int = 70, **records: list[dict[str, Any]]) -> dict[str, Any]:
    symbols = [
        {"kernel_id": 0, "kernel_name": "", "formatted_kernel_name": "0"},
        {"kernel_id": 5, "kernel_name": "_Z4gemmi.kd", "formatted_kernel_name": "gemm(int)"},
        {"kernel_id": 6, "kernel_name": "norm.kd", "formatted_kernel_name": "norm"},
    ]
    agents = [
        {"id": {"handle": 60}, "type": 1, "name": "EPYC", "product_name": "AMD EPYC", "logical_node_id": 0},
        {
            "id": {"handle": agent},
            "type": 2,
            "name": "gfx942",
            "product_name": "AMD Instinct MI300X",
            "logical_node_id": 4,
        },
    ]
    strings = {"buffer_records": KINDS, "marker_api": [{"key": 1, "value": "decode step"}]}
    return {
        "metadata": {"pid": pid, "node": {"hostname": "h"}},
        "agents": agents,
        "strings": strings,
        "buffer_records": {"scratch_memory": [{"anything": [1]}], **records},
        "kernel_symbols": symbols,
    }


def write_json(path: Path, *processes: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"rocprofiler-sdk-tool": list(processes)}))
    return path
