"""rocprofv3's CSV of kernels, and beside it those of HIP calls, markers, copies and agents.

Columns have been added in the middle at least three times (Stream_Id, the sizes of registers, Duration_ns), so only
names count. The kernel file does not say its process: that stands in the file's name, or in the file of HIP calls.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import csv_table
from fusionscope.profiler.readers.assemble import CALLS, DEVICE, RANGES, Found, assemble
from fusionscope.profiler.trace import Trace

_TIMES = {"start_ns": ("start_timestamp",), "end_ns": ("end_timestamp",)}
_KERNEL = {
    **_TIMES,
    "correlation": ("correlation_id",),
    "queue": ("queue_id",),
    "stream": ("stream_id",),
    "thread": ("thread_id",),
    "dispatch": ("dispatch_id",),
    "process": ("process_id", "pid"),
    "graph": ("graph_exec_id",),
    "node": ("graph_node_id",),
}
_CALL = {**_TIMES, "process": ("process_id", "pid"), "thread": ("thread_id", "tid"), "correlation": ("correlation_id",)}
_SUFFIX = "kernel_trace.csv"
_HOST = ("hip_api_trace.csv", "hip_runtime_api_trace.csv", "rccl_api_trace.csv")
_MARKERS, _COPIES, _AGENTS = "marker_api_trace.csv", "memory_copy_trace.csv", "agent_info.csv"
_BESIDE = (*_HOST, _MARKERS, _COPIES, _AGENTS)


def is_kernels(columns: list[str]) -> bool:
    """Whether a header (small letters) is that of a kernel trace."""
    return {"agent_id", "kernel_name", "start_timestamp", "end_timestamp"} <= set(columns)


def is_beside(columns: list[str]) -> bool:
    """Whether a header is that of a file which rocprofv3 writes beside its kernels."""
    return {"start_timestamp", "end_timestamp"} <= set(columns) and bool({"function", "direction"} & set(columns))


def read(path: str | Path) -> Trace:
    """The tables of one kernel_trace.csv and of the files that the same process wrote beside it.

    Raises UnreadableTrace with the row that cannot be read.
    """
    path = Path(path)
    kernels = csv_table.read(path, _KERNEL, {"name": ("kernel_name",), "agent": ("agent_id",)})
    found = Found(path, pd.DataFrame(columns=list(DEVICE)), warnings=kernels.warnings)
    calls = _calls(found, *_HOST)
    process = _process(path, calls)
    rows = kernels.rows
    own = rows["process"] if "process" in rows else pd.Series(process, index=rows.index, dtype="int64")
    device = pd.DataFrame(
        {
            "process": own,
            "device": _numbers(rows["agent"]),
            "stream": rows["stream"] if "stream" in rows else rows.get("queue", -1),
            "kind": "kernel",
            "name": rows["name"],
            "start_ns": rows["start_ns"],
            "end_ns": rows["end_ns"],
            "correlation": rows.get("correlation", -1),
        }
    )
    if "graph" in rows:
        device = device.assign(graph=rows["graph"].where(rows["graph"] > 0, -1), node=rows.get("node", -1))
        device["node"] = device["node"].where(device["graph"] > 0, -1)
    found.warnings += _doubts(rows, device, own)
    found.calls = calls.assign(process=calls["process"].where(calls["process"] >= 0, process))
    ranges = _calls(found, _MARKERS)
    found.ranges = ranges.assign(process=ranges["process"].where(ranges["process"] >= 0, process))[list(RANGES)]
    found.device = _with_copies(found, device, process)
    found.machine = _machine(path)
    return assemble(found)


def beside(path: Path, suffix: str) -> Path | None:
    """The file of another kind that the same process wrote, where it is there."""
    return next((other for name in _names(path.name, suffix) if (other := path.with_name(name)).is_file()), None)


def names_beside(name: str) -> list[list[str]]:
    """The names of the files that are read with a kernel trace of that name: of each kind, the first that is there."""
    return [names for suffix in _BESIDE if (names := _names(name, suffix))]


def _names(name: str, suffix: str) -> list[str]:
    """How a file of another kind may be called; it need not be packed as the kernels are."""
    at = name.rfind(_SUFFIX)
    if at < 0:
        return []
    packings = dict.fromkeys((name[at + len(_SUFFIX) :], "", ".gz", ".zst"))
    return [f"{name[:at]}{suffix}{packing}" for packing in packings]


def kernels_names(name: str) -> list[str]:
    """How the kernel trace may be called to which a file of calls, markers or copies belongs; none for other files."""
    match = re.search(r"(?:(?:[a-z]+_(?:runtime_)?api|memory_copy)_trace|agent_info)\.csv(\.gz|\.zst|)$", name)
    return _names(f"{name[: match.start()]}{_SUFFIX}{match[1]}", _SUFFIX) if match else []


def kernels_beside(path: Path) -> Path | None:
    """That kernel trace, where it is there."""
    return next((other for name in kernels_names(path.name) if (other := path.with_name(name)).is_file()), None)


def _calls(found: Found, *suffixes: str) -> pd.DataFrame:
    parts = []
    for suffix in suffixes:
        if (other := beside(found.path, suffix)) is None:
            continue
        table = csv_table.read(other, _CALL, {"name": ("function",)})
        found.warnings += table.warnings
        if {"start_ns", "end_ns", "name"} <= set(table.rows.columns):
            rows = table.rows.astype({"name": "object"})
            parts.append(rows.assign(**{c: -1 for c in CALLS if c not in rows}))
    if not parts:
        return pd.DataFrame({c: pd.Series(dtype="object" if c == "name" else "int64") for c in CALLS})
    return pd.concat(parts, ignore_index=True)[list(CALLS)]


def _with_copies(found: Found, device: pd.DataFrame, process: int) -> pd.DataFrame:
    other = beside(found.path, _COPIES)
    if other is None:
        return device
    spellings = {**_TIMES, "correlation": ("correlation_id",), "stream": ("stream_id",)}
    texts = {"name": ("direction",), "to": ("destination_agent_id",), "from": ("source_agent_id",)}
    table = csv_table.read(other, spellings, texts)
    found.warnings += table.warnings
    rows = table.rows
    if not {"name", "from", "to", *_TIMES} <= set(rows.columns):
        return device
    # The GPU's side of a copy is the agent that also runs kernels.
    gpus = set(device["device"])
    to, source = _numbers(rows["to"]), _numbers(rows["from"])
    copies = pd.DataFrame(
        {"start_ns": rows["start_ns"], "end_ns": rows["end_ns"], "name": rows["name"].astype("object")}
    )
    copies = copies.assign(device=source.where(source.isin(gpus), to), process=process, kind="memcpy", stream=-1)
    copies["correlation"] = rows.get("correlation", -1)
    copies = copies[copies["device"].isin(gpus)]
    return pd.concat([device.astype({"name": "object"}), copies], ignore_index=True).fillna({"graph": -1, "node": -1})


def _numbers(column: pd.Series) -> pd.Series:
    """ "Agent 4" and 4 are device 4."""
    ends = [re.search(r"\d+$", str(text)) for text in column.cat.categories]
    told = np.array([int(end[0][:18]) if end else -1 for end in ends] + [-1], dtype=np.int64)
    return pd.Series(told[column.cat.codes.to_numpy()], index=column.index)


def _process(path: Path, calls: pd.DataFrame) -> int:
    processes = calls.loc[calls["process"] >= 0, "process"].unique()
    if len(processes) == 1:
        return int(processes[0])
    match = re.search(r"(?:^|_)(\d{1,10})_kernel_trace\.csv", path.name)
    return int(match.group(1)) if match else -1


def _doubts(rows: pd.DataFrame, device: pd.DataFrame, process: pd.Series) -> list[str]:
    if "dispatch" not in rows:
        return []
    numbered = pd.DataFrame({"process": process, "device": device["device"], "dispatch": rows["dispatch"]})
    again = numbered[["process", "dispatch"]].duplicated().to_numpy()
    twice = int(again.sum())
    if not twice:
        return []
    apart = "" if numbered.duplicated().any() else ", told apart by their device"
    at = int(again.argmax())
    return [
        f"{twice} dispatch ids stand twice in the file (first again in row {at + 2}): several processes wrote it"
        f"{apart}; "
        "give rocprofv3 `-o %hostname%_%pid%` so that each has its own."
    ]


def _machine(path: Path) -> dict[str, str]:
    machine = {"profiler": "rocprofv3"}
    other = beside(path, _AGENTS)
    if other is None:
        return machine
    texts = {"type": ("agent_type",), "product": ("product_name", "name")}
    agents = csv_table.read(other, {}, texts).rows
    if {"type", "product"} <= set(agents.columns):
        names = agents.loc[agents["type"].astype(str).isin(["GPU", "2"]), "product"].dropna().astype(str)
        if gpu := ", ".join(dict.fromkeys(name for name in names if name)):
            machine["gpu"] = gpu
    return machine


def refuse(path: Path) -> UnreadableTrace:
    """What to say of a file of calls, markers or copies that was given alone."""
    other = kernels_beside(path)
    give = f"give {other}" if other else f"give the *_{_SUFFIX} of the same process"
    return UnreadableTrace(
        f"{path} holds host calls or copies of rocprofv3, and no kernel: {give}; this one is read with it."
    )
