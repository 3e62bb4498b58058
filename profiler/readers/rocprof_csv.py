"""CSV and text of rocprof v1 and rocprof v2, which came before rocprofv3."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import csv_table, packed
from fusionscope.profiler.readers.assemble import DEVICE, Found, assemble
from fusionscope.profiler.readers.rows import Numbers, Texts
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
_SPELLINGS = {"kernel_name": "name", **{spelling: name for name, all_ in _NUMBERS.items() for spelling in all_}}
#: What stands between quotes, and is found without going back.
_QUOTED = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'
_FIELD = re.compile(r'(\w+)\((?:"((?:[^"\\]|\\.)*)"|([^)]*))\)')
#: A longer line is none of rocprof's.
_LINE = 1 << 20
_AT_ONCE = 50_000


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
    lines = _Lines()
    try:
        with packed.opened(path) as file:
            while line := file.readline(_LINE):
                lines.add(line)
        found = lines.frame()
    except packed.DAMAGE as error:
        raise packed.damaged(path, packed.head(path)[0], error) from error
    except (ValueError, OverflowError) as error:
        raise UnreadableTrace(
            f"{path} is broken in line {len(lines) + 1} of its kernels ({error}): {ADVICE}."
        ) from error
    return _assembled(path, found, [])


class _Lines:
    """Lines of a kernel each. All of a file have the fields of the first: one pattern takes these, at once."""

    def __init__(self) -> None:
        self._alike: re.Pattern[bytes] | None = None
        #: The place in a row of each group of that pattern.
        self._places: list[int] = []
        self._matched: list[tuple[bytes, ...]] = []
        self._numbers = Numbers("text", *_NUMBERS)
        self._texts = Texts()

    def __len__(self) -> int:
        return len(self._matched) + len(self._numbers)

    def add(self, line: bytes) -> None:
        if self._alike and (match := self._alike.fullmatch(line)):
            self._matched.append(match.groups())
            if len(self._matched) >= _AT_ONCE:
                self._keep()
            return
        text = line.decode("utf-8", errors="replace")
        fields = _FIELD.findall(text)
        told = {_SPELLINGS.get(key.lower()): quoted or bare for key, quoted, bare in fields}
        if {"name", "start_ns", "end_ns"} <= set(told):
            values = [int(told[name]) if name in told else -1 for name in _NUMBERS]
            if not all(-(1 << 63) <= value < 1 << 63 for value in values):
                raise OverflowError("a number is too large")
            self._keep()
            self._numbers.extend([self._texts.code(told["name"])], *([value] for value in values))
            self._alike, self._places = _like([key for key, _, _ in fields])

    def _keep(self) -> None:
        if not self._matched:
            return
        found = dict(zip(self._places, zip(*self._matched, strict=True), strict=True))
        columns = [list(map(int, found[place])) if place in found else [-1] * len(self._matched)
                   for place in range(1, len(_NUMBERS) + 1)]  # fmt: skip
        codes = {raw: self._texts.code(raw.decode("utf-8", errors="replace")) for raw in dict.fromkeys(found[0])}
        self._numbers.extend([codes[raw] for raw in found[0]], *columns)
        self._matched.clear()

    def frame(self) -> pd.DataFrame:
        self._keep()
        rows = self._numbers.frame()
        return rows.assign(name=self._texts.column(rows["text"])).drop(columns="text")


def _like(keys: list[str]) -> tuple[re.Pattern[bytes] | None, list[int]]:
    """A pattern of lines with just these fields, and where its groups belong: 0 the name, then _NUMBERS.

    None where a field stands twice. Lines that it does not take can be kernels as well.
    """
    order = ["name", *_NUMBERS]
    named = [_SPELLINGS.get(key.lower()) for key in keys]
    known = [name for name in named if name]
    if len(set(known)) < len(known):
        return None, []
    value = {None: rb'(?:"' + _QUOTED + rb'"|[^)"]*+)', "name": rb'"(?!")(' + _QUOTED + rb')"'}
    parts = [re.escape(key.encode()) + rb"\(" + value.get(name, rb"(\d{1,18})") + rb"\)"
             for key, name in zip(keys, named, strict=True)]  # fmt: skip
    return re.compile(rb"\s*" + rb",\s*".join(parts) + rb"\s*", re.DOTALL), [order.index(name) for name in known]


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
