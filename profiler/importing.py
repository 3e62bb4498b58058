"""Several files as one run: one rank each, with provenance and untraced times beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from fusionscope.profiler import file_ranks
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.file_ranks import ranks_of
from fusionscope.profiler.mapping import map_files
from fusionscope.profiler.progress import Progress
from fusionscope.profiler.readers import read_provenance, read_timings, read_trace, rocprofv3_csv
from fusionscope.profiler.recorders import places_of
from fusionscope.profiler.remote import local_copy
from fusionscope.profiler.runinfo import InputFile
from fusionscope.profiler.trace import Trace, merge, table

__all__ = ["Part", "file_digest", "import_files", "input_file", "joined", "ranks_of", "read_files", "recorded_by"]


@dataclass(frozen=True)
class Part:
    """One file that was read: its trace, and what run.json says of it."""

    path: str
    trace: Trace
    file: InputFile


def import_files(
    files: Sequence[str | Path],
    provenance: str | Path | None = None,
    timings: str | None = None,
    progress: Progress | None = None,
) -> Trace:
    """The files as the ranks of one run: `joined` of `read_files`, which say what is raised."""
    return joined(read_files(files, progress=progress), provenance, timings)


def read_files(
    files: Sequence[str | Path],
    *,
    workers: int | None = None,
    scheduler: str = "",
    progress: Progress | None = None,
) -> list[Part]:
    """Every file or URL read, in their order, over local processes or a Dask cluster (see `map_files`).

    Raises FusionScopeError where there is no file, or one cannot be read.
    """
    if not files:
        raise FusionScopeError("No file was given: name at least one trace to import.")
    paths = [str(path) for path in files]
    return map_files(read_part, paths, workers=workers, scheduler=scheduler, progress=progress)


def read_part(path: str) -> Part:
    """One file or URL read: a pure function that any process of any machine can run."""
    with local_copy(path, rocprofv3_csv.names_beside) as here:
        return Part(path, read_trace(here), input_file(here))


def recorded_by(parts: Sequence[Part], recorder: str) -> tuple[list[Part], list[str]]:
    """The parts that a profiler recorded (a name of RECORDERS, "" for all), and a sentence on those left out.

    Raises FusionScopeError where it recorded none.
    """
    if not recorder:
        return list(parts), []
    kept = places_of(recorder, [part.file.path for part in parts], [part.trace for part in parts])
    others = [part for place, part in enumerate(parts) if place not in kept]
    notes = [f"{part.file.path} was left out: another profiler than {recorder} recorded it." for part in others]
    return [parts[place] for place in kept], notes


def joined(parts: Sequence[Part], provenance: str | Path | None = None, timings: str | None = None) -> Trace:
    """The parts as the ranks of one run.

    `provenance` is a *.nodes.json, for every rank; `timings` is "FILE[:ARM]". Raises FusionScopeError where two files
    claim one rank.
    """
    merged = merge(file_ranks.numbered([Path(part.path) for part in parts], [part.trace for part in parts]))
    ranks = ranks_of(merged)
    merged = replace(merged, warnings=(*merged.warnings, *file_ranks.missing(ranks, merged.world_size)))
    if provenance is not None:
        merged = replace(merged, sites=_for_ranks("sites", read_provenance(provenance), ranks))
    if timings is not None:
        merged = replace(merged, timings=_timings(timings, merged, ranks))
    return merged


def input_file(path: str | Path) -> InputFile:
    """What run.json says of a file. Raises FusionScopeError where it cannot be read."""
    sha, size = file_digest(path)
    try:
        changed = datetime.fromtimestamp(Path(path).stat().st_mtime, UTC)
    except (OSError, OverflowError, ValueError):
        changed = None
    told = changed.isoformat(timespec="seconds") if changed else ""
    return InputFile(path=Path(path).name, sha256=sha, bytes=size, modified=told)


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
