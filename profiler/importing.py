"""Several files as one run: one rank each, with provenance and untraced times beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from fusionscope.profiler import file_ranks
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.file_ranks import ranks_of
from fusionscope.profiler.readers import read_provenance, read_timings, read_trace
from fusionscope.profiler.trace import Trace, merge, table

__all__ = ["file_digest", "import_files", "ranks_of"]

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
    paths = [Path(path) for path in files]
    for done, path in enumerate(paths):
        if progress:
            progress(done, len(paths), path.name)
        traces.append(read_trace(path))
    if progress:
        progress(len(paths), len(paths), "")
    merged = merge(file_ranks.numbered(paths, traces))
    ranks = ranks_of(merged)
    merged = replace(merged, warnings=(*merged.warnings, *file_ranks.missing(ranks, merged.world_size)))
    if provenance is not None:
        merged = replace(merged, sites=_for_ranks("sites", read_provenance(provenance), ranks))
    if timings is not None:
        merged = replace(merged, timings=_timings(timings, merged, ranks))
    return merged


def file_digest(path: str | Path) -> tuple[str, int]:
    """(sha256 in hex, size in bytes) of a file, or of all files of a folder, as run.json records it."""
    digest = hashlib.sha256()
    size = 0
    path = Path(path)
    try:
        for part in sorted(path.iterdir()) if path.is_dir() else [path]:
            with open(part, "rb") as file:
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
