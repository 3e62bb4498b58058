"""CSV and text of rocprof v1 and rocprof v2, which came before rocprofv3."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import csv_table, packed
from fusionscope.profiler.readers.assemble import DEVICE, Found, assemble, frame
from fusionscope.profiler.trace import Trace

ADVICE = "record again with `rocprofv3 --kernel-trace --hip-trace`, which replaces rocprof"
_NUMBERS = {
    "start_ns": ("beginns", "start_timestamp", "begin_timestamp"),
    "end_ns": ("endns", "end_timestamp", "stop_timestamp"),
    "device": ("gpu-id", "gpu_id"),
    "stream": ("queue-id", "queue_id"),
    "process": ("pid", "process_id"),
    "correlation": ("correlation_id",),
}
_TEXTS = {"name": ("kernelname", "kernel_name"), "operation": ("operation",)}
_FIELD = re.compile(r'(\w+)\((?:"((?:[^"\\]|\\.)*)"|([^)]*))\)')
#: A longer line is none of rocprof's.
_LINE = 1 << 20


def is_rocprof(columns: list[str]) -> bool:
    """Whether a header (small letters) is that of rocprof v1's or v2's kernels."""
    found = set(columns)
    old = {"kernelname", "beginns", "endns"} <= found
    kernels = {"gpu_id", "kernel_name", "start_timestamp", "end_timestamp"} <= found
    return old or kernels or {"operation", "kernel_name", "start_timestamp", "stop_timestamp"} <= found


def is_untimed(columns: list[str]) -> bool:
    """Whether a header is that of kernels without their times: rocprof v1 writes these unless it is asked for."""
    return {"kernelname", "gpu-id", "queue-id"} <= set(columns) and "beginns" not in columns


def is_text(head: bytes) -> bool:
    """Whether the first bytes are what rocprof v2 prints to the terminal."""
    return re.match(rb"\s*Dispatch_ID\(\d+\),", head) is not None


def read(path: str | Path) -> Trace:
    """The tables of one CSV. Raises UnreadableTrace with the row that cannot be read."""
    path = Path(path)
    table = csv_table.read(path, _NUMBERS, _TEXTS)
    return _assembled(path, table.rows, table.warnings)


def read_text(path: str | Path) -> Trace:
    """The tables of what rocprof v2 printed, one line a kernel; other lines are passed over."""
    path = Path(path)
    rows: list[tuple[object, ...]] = []
    wanted = {"kernel_name": "name", **{spelling: name for name, all_ in _NUMBERS.items() for spelling in all_}}
    try:
        with packed.opened(path) as file:
            while line := file.readline(_LINE):
                text = line.decode("utf-8", errors="replace")
                told = {wanted.get(key.lower()): quoted or bare for key, quoted, bare in _FIELD.findall(text)}
                if {"name", "start_ns", "end_ns"} <= set(told):
                    rows.append(tuple(_text_value(name, told.get(name)) for name in ("name", *_NUMBERS)))
        found = frame(("name", *_NUMBERS), rows)
    except packed.DAMAGE as error:
        raise packed.damaged(path, packed.head(path)[0], error) from error
    except (ValueError, OverflowError) as error:
        raise UnreadableTrace(
            f"{path} is broken in line {len(rows) + 1} of its kernels ({error}): {ADVICE}."
        ) from error
    return _assembled(path, found, [])


def _text_value(name: str, value: str | None) -> object:
    return value if name == "name" else int(value) if value is not None else -1


def _assembled(path: Path, rows: pd.DataFrame, warnings: list[str]) -> Trace:
    missing = {column: -1 for column in _NUMBERS if column not in rows}
    device = rows.assign(kind="kernel", **missing)
    if "operation" in device:
        operation = device["operation"].astype(str)
        is_copy, is_fill = operation.str.contains("Copy", case=False), operation.str.contains("Fill|Memset", case=False)
        device["kind"] = device["kind"].where(~is_copy, "memcpy").where(~is_fill, "memset")
        device["name"] = device["name"].astype("object").where(device["name"].astype(str) != "", operation)
    found = Found(path, device[list(DEVICE)], machine={"profiler": "rocprof"}, warnings=warnings, advice=ADVICE)
    return assemble(found)
