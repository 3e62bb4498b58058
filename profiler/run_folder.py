"""The folder of one run: Parquet tables, and what a trace holds beside them. Reading runs no code."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pyarrow as pa

from fusionscope.profiler import runinfo
from fusionscope.profiler.parquet_file import read_table
from fusionscope.profiler.runinfo import BrokenRun, RunInfo
from fusionscope.profiler.trace import TABLES, Trace, table


class _Extra(msgspec.Struct, kw_only=True):
    """What a Trace holds beside its tables."""

    machine: dict[str, str] = {}
    graph_mode: bool = False
    warnings: list[str] = []
    world_size: int = 0


def write(folder: Path, info: RunInfo, trace: Trace) -> None:
    """Write every table, what a trace holds beside them, and run.json. Raises OSError."""
    for name in TABLES:
        path = folder / f"{name}.parquet"
        getattr(trace, name).to_parquet(path, index=False, compression="zstd")
        fsync(path)
    extra = _Extra(
        machine=trace.machine,
        graph_mode=trace.graph_mode,
        warnings=list(trace.warnings),
        world_size=trace.world_size,
    )
    for file_name, data in (("trace.json", msgspec.json.encode(extra)), ("run.json", runinfo.encode(info))):
        (folder / file_name).write_bytes(data)
        fsync(folder / file_name)
    fsync(folder)


def fsync(path: Path) -> None:
    """Have a file or folder on the disk before going on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(folder: Path) -> Trace:
    """The trace in a run's folder. Raises BrokenRun where a table or trace.json cannot be read."""
    tables = {}
    for name, schema in TABLES.items():
        path = folder / f"{name}.parquet"
        try:
            # What pandas notes about columns in the file is not needed, and need not be true.
            data = read_table(path).to_pandas(ignore_metadata=True)
            # A newer tool may have added columns; this one reads those that it knows.
            # An empty table is made anew, since empty dictionaries come back from Parquet with another type.
            known = data[[column for column in schema if column in data]]
            tables[name] = table(name, known if len(data) else None)
        except (OSError, pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise BrokenRun(
                f"{path} cannot be read ({_first_line(error)}); capture or import the run again."
            ) from error
    try:
        extra = msgspec.json.decode((folder / "trace.json").read_bytes(), type=_Extra)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BrokenRun(f"{folder / 'trace.json'} cannot be read ({error}); capture or import again.") from error
    return Trace(
        **tables,
        machine=extra.machine,
        graph_mode=extra.graph_mode,
        warnings=tuple(extra.warnings),
        world_size=extra.world_size,
    )


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__
