"""Which reader a file is for: by what it holds, never by its name."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import (
    csv_table,
    kineto,
    nsys_parquet,
    nsys_report,
    nsys_sqlite,
    packed,
    perfetto,
    perfetto_packets,
    rocpd,
    rocprof_csv,
    rocprof_db,
    rocprof_json,
    rocprofv3_csv,
    rocprofv3_json,
    rpd,
)
from fusionscope.profiler.readers.doubts import with_doubts
from fusionscope.profiler.readers.names import with_readable_names
from fusionscope.profiler.readers.sqlite_file import opened, pending_rows
from fusionscope.profiler.readers.wrong_files import is_wrong, refusal
from fusionscope.profiler.trace import Trace

_SQLITE = b"SQLite format 3\x00"
_Reader = Callable[[Path], Trace]


def read_trace(path: str | Path) -> Trace:
    """The trace in one file, whichever profiler wrote it, packed with gzip or zstd or not.

    Raises UnreadableTrace with one sentence: what the file is, where that shows and what to do.
    """
    return with_doubts(with_readable_names(_read(Path(path))))


def _read(path: Path) -> Trace:
    if nsys_parquet.is_folder(path):
        return nsys_parquet.read(path)
    packing, head = packed.head(path)
    if packing and (head.startswith(_SQLITE) or packing == "zstd"):
        return _unpacked(path)
    trace = _reader(path, packing, head)(path)
    if head.startswith(_SQLITE) and (unmerged := pending_rows(path)):
        return replace(trace, warnings=(*trace.warnings, unmerged))
    return trace


#: What a JSON file says near its start if it is a trace of torch.profiler.
_CHROME = (b'"traceEvents"', b'"schemaVersion"', b'"deviceProperties"', b'"distributedInfo"', b'"ph"')


def is_trace(path: Path) -> bool:
    """Whether a file looks like a trace, by its first bytes: what a folder holds beside traces is passed over."""
    try:
        packing, head = packed.head(path)
        if packing and head.startswith(_SQLITE):
            return True
        reader = _reader(path, packing, head)
    except UnreadableTrace:
        return False
    if reader is nsys_sqlite.read:
        with opened(path) as database:
            return "StringIds" in database.tables
    return reader is not kineto.read or any(word in head for word in _CHROME)


def _reader(path: Path, packing: str, head: bytes) -> _Reader:
    if head.startswith(_SQLITE):
        return _sqlite_reader(path)
    # Before JSON: a packet begins with what is a line feed in a text.
    if perfetto_packets.is_perfetto(head):
        return perfetto.read
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        if rocprofv3_json.is_rocprofv3(head):
            return rocprofv3_json.read
        return rocprof_json.read if rocprof_json.is_rocprof(head) else kineto.read
    if rocprof_csv.is_text(head):
        return rocprof_csv.read_text
    if found := _csv_reader(path, head):
        return found
    if nsys_report.is_report(path) and not is_wrong(head):
        return nsys_report.read
    raise refusal(path, packing, head)


def _sqlite_reader(path: Path) -> _Reader:
    try:
        with opened(path) as database:
            tables = database.tables
    except sqlite3.Error as error:
        raise UnreadableTrace(f"{path} is a damaged SQLite file ({error}): copy it again.") from error
    if rocpd.is_rocpd(tables):
        return rocpd.read
    if rpd.is_rpd(tables):
        return rpd.read
    if rocprof_db.is_rocprof(tables):
        return rocprof_db.read
    return nsys_sqlite.read


def _csv_reader(path: Path, head: bytes) -> _Reader | None:
    columns = csv_table.header(head)
    if rocprofv3_csv.is_kernels(columns):
        return rocprofv3_csv.read
    if rocprof_csv.is_rocprof(columns):
        return rocprof_csv.read
    if rocprof_csv.is_untimed(columns):
        raise UnreadableTrace(
            f"{path} lists kernels of rocprof without their times: record with `rocprof --timestamp on`, or with "
            "`rocprofv3 --kernel-trace`."
        )
    if rocprofv3_csv.is_beside(columns):
        raise rocprofv3_csv.refuse(path)
    return None


def _unpacked(path: Path) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / (path.name.removesuffix(".gz").removesuffix(".zst") or "trace")
        packed.unpack(path, plain)
        try:
            return _reader(plain, "", packed.head(plain)[1])(plain)
        except UnreadableTrace as error:
            # The user knows the file by its own name.
            raise UnreadableTrace(str(error).replace(str(plain), str(path))) from error
