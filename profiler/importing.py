"""Several files as one run: one rank each, with provenance and untraced times beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.readers import read_provenance, read_timings, read_trace
from fusionscope.profiler.trace import Trace, merge, table

Progress = Callable[[int, int, str], None]


def import_files(
    files: Sequence[str | Path],
    provenance: str | Path | None = None,
    timings: str | None = None,
    progress: Progress | None = None,
) -> Trace:
    """The files as the ranks of one run.

    `provenance` is a *.nodes.json, for every rank; `timings` is "FILE[:ARM]". `progress` is called before each file
    with (files done, files in all, name of the next). Raises FusionScopeError where two files claim one rank.
    """
    if not files:
        raise FusionScopeError("No file was given: name at least one trace to import.")
    traces: list[Trace] = []
    owner: dict[int, Path] = {}
    for done, path in enumerate(map(Path, files)):
        if progress:
            progress(done, len(files), path.name)
        trace = read_trace(path)
        for rank in ranks_of(trace):
            if rank in owner:
                raise FusionScopeError(
                    f"{owner[rank]} and {path} both claim rank {rank}: import one file per rank of one run, "
                    "or put the rank into the names (…rank0…, …rank1…)."
                )
            owner[rank] = path
        traces.append(trace)
    if progress:
        progress(len(files), len(files), "")
    merged = merge(traces)
    ranks = ranks_of(merged)
    if provenance is not None:
        merged = replace(merged, sites=_for_ranks("sites", read_provenance(provenance), ranks))
    if timings is not None:
        merged = replace(merged, timings=_timings(timings, merged, ranks))
    return merged


def ranks_of(trace: Trace) -> list[int]:
    """The ranks that have work in a trace; graph mode has replay times instead of kernels."""
    rows = trace.kernels if len(trace.kernels) else trace.timings
    return sorted(int(rank) for rank in rows["rank"].unique())


def file_digest(path: str | Path) -> tuple[str, int]:
    """(sha256 in hex, size in bytes) of a file, as run.json records it."""
    digest = hashlib.sha256()
    size = 0
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                size += len(block)
    except OSError as error:
        raise FusionScopeError(f"{path} cannot be read ({error.strerror}): give the path of a file.") from error
    return digest.hexdigest(), size


def _for_ranks(name: str, rows: pd.DataFrame, ranks: list[int]) -> pd.DataFrame:
    """Rows without a rank hold for every rank."""
    shared, own = rows[rows["rank"] == -1], rows[rows["rank"] != -1]
    return table(name, pd.concat([*(shared.assign(rank=rank) for rank in ranks), own], ignore_index=True))


def _timings(spec: str, trace: Trace, ranks: list[int]) -> pd.DataFrame:
    """Times without a rank were taken on the run's first rank; a lone process's graph-level trace is of a lone rank."""
    rows = read_timings(spec)
    first = ranks[0] if ranks else 0
    lone = len(ranks) == 1 and rows["rank"].nunique() == 1 and set(rows["source"]) == {"graph-level trace"}
    rows = rows.assign(rank=first if lone else rows["rank"].where(rows["rank"] >= 0, first))
    parts = [part.astype({"arm": "object", "source": "object"}) for part in (trace.timings, rows) if len(part)]
    return table("timings", pd.concat(parts, ignore_index=True) if parts else None)
