"""Small traces of rocprof v1 and v2 in the form that their sources write."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

V1 = (
    "Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgp,lds,scr,arch_vgpr,accum_vgpr,sgpr,wave_size,sig,obj,"
    "DispatchNs,BeginNs,EndNs,CompleteNs,DurationNs"
)
V2 = (
    "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,Arch_VGPR,"
    "Accum_VGPR,SGPR,Wave_Size,Kernel_Name,Start_Timestamp,End_Timestamp,Correlation_ID\n"
)
ACTIVITY = "Domain,Operation,Kernel_Name,Start_Timestamp,Stop_Timestamp,Correlation_ID\n"
TEXT = (
    'Dispatch_ID({}), GPU_ID(4), Queue_ID(1), Process_ID(55), Thread_ID(55), Grid_Size(64), Kernel_Name("{}"), '
    "Begin_Timestamp({}), End_Timestamp({}), Correlation_ID({})"
)


def v1(name: str, begin: int | None, end: int | None) -> str:
    return f'0,"{name}",4,1,0,55,55,64,64,0,0,8,0,16,64,0x0,0x7f,1,{begin},{end},9,1'


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


TIMES = ((3489389203444239, 3489389203444249), (3489389203444250, 3489389203444257))
NAMES = ("_Z4gemmi.kd", "norm<a, b>(int) [clone .kd]")


def v1_events() -> list[dict[str, Any]]:
    def section(pid: int, name: str) -> dict[str, Any]:
        return {"args": {"name": name}, "ph": "M", "pid": pid, "name": "process_name", "sort_index": pid}

    def event(pid: int, name: str, begin: int, end: int, index: int, **args: str) -> dict[str, Any]:
        # ts and dur are texts of whole microseconds, and a duration of 0 is written as 1.
        when = {"ts": str(begin // 1000), "dur": str(max((end - begin) // 1000, 1)), "ph": "X"}
        told = {"BeginNs": str(begin), "EndNs": str(end), "pid": "55", "tid": "77", "Index": str(index), "Name": name}
        return {**when, "name": name, "pid": str(pid), "tid": "0", "args": {**told, **args}}

    gpu = {"dev-id": "4", "queue-id": "1"}
    return [
        {},
        section(2, "CPU HIP API"),
        section(6, "GPU4"),
        section(0, "Markers and Ranges"),
        event(2, "hipLaunchKernel", TIMES[0][0] - 100, TIMES[0][0] - 90, 7),
        event(0, "decode step", 5, 9, 0),
        *(event(6, n, *t, i, **gpu) for n, t, i in zip(NAMES, TIMES, (7, 8), strict=True)),
    ]


def v1_database(path: Path) -> Path:
    """The two kernels and the launch of the first."""
    connection = sqlite3.connect(path)
    columns = 'BeginNs, EndNs, pid, tid, Name, "Index", Data, __section, __lane'
    for table in ("OPS", "HIP", "rocTX"):
        connection.execute(f"CREATE TABLE {table} ({columns})")
    for name, times, index in zip(NAMES, TIMES, (7, 8), strict=True):
        connection.execute("INSERT INTO OPS VALUES (?,?,55,77,?,?,'',4,1)", (*times, name, index))
    connection.execute("INSERT INTO HIP VALUES (1,2,55,77,'hipLaunchKernel',7,'',0,0)")
    connection.commit()
    connection.close()
    return path
