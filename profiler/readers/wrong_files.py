"""What is said of a file that is no trace."""

from __future__ import annotations

from pathlib import Path

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers.csv_table import header

READABLE = (
    "FusionScope reads Nsight Systems exports, torch.profiler traces, rocprofv3 CSV, JSON and databases, rocprof CSV "
    "and JSON, RPD and Perfetto files"
)


def refusal(path: Path, packing: str, head: bytes) -> UnreadableTrace:
    """The error for a file that no reader takes. `head` are its first bytes, unpacked."""
    says = f"is a {packing} file that holds" if packing else "is"
    return UnreadableTrace(f"{path} {says} {_what(head)}.")


def is_wrong(head: bytes) -> bool:
    """Whether the first bytes show what a file is instead of a trace, whatever its name."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    page = text[:200].lower().startswith((b"<!doctype", b"<html", b"<?xml"))
    return not text or page or text.startswith((b"version https://git-lfs", b"PK\x03\x04"))


def _what(head: bytes) -> str:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    start, lower = text[:24], text[:200].lower()
    if not text:
        return "empty: record or copy the trace again"
    if text.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the trace itself: run `git lfs pull`"
    if lower.startswith((b"<!doctype", b"<html", b"<?xml")):
        return f"a web page (it starts with {start!r}), as a failed download leaves: download the raw file"
    if text.startswith(b"PK\x03\x04"):
        return "a zip archive: unpack it and give the trace inside"
    if text.startswith((b"PAR1", b"ARROW1")):
        return "one table of a Parquet or Arrow export: give the folder that holds all of them"
    if text.startswith(b"BZh") or text.startswith(b"\xfd7zXZ"):
        return "packed with bzip2 or xz: unpack it first, or pack it with gzip or zstd"
    columns = set(header(head))
    if {"name", "calls"} <= columns and any(column.startswith("totalduration") for column in columns):
        return "a summary with one row a kernel name: give the trace, with one row a launch"
    if "gpu__time_duration.sum" in columns or {"id", "process id", "kernel name", "metric name"} <= columns:
        return (
            "a report of Nsight Compute, which times kernels one by one at locked clocks and not inside a replay: "
            "record with Nsight Systems"
        )
    return f"no trace (it starts with {start!r}): {READABLE}"
