"""All ranks' traces of one capture as one trace, with the marks that the processes left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.readers import read_provenance, read_trace
from fusionscope.profiler.trace import Trace, merge, table


@dataclass(frozen=True)
class Gathered:
    """One trace of all ranks, the files it came from, and the files of marks that were used."""

    trace: Trace
    files: list[Path]
    marks: list[Path]


def gather(files: Sequence[Path], marks: Sequence[Path] = ()) -> Gathered:
    """Read and join. Files without GPU work (a frontend's) are left out where others have some.

    Where the names do not tell the ranks, they are numbered by device, then process. Raises FusionScopeError where no
    file can be read.
    """
    read = [(path, read_trace(path)) for path in files]
    busy = [(path, trace) for path, trace in read if len(trace.kernels)]
    left = len(read) - len(busy)
    used = busy or read[:1]
    traces = [trace for _, trace in used]
    notes: list[str] = []
    if left and busy:
        notes.append(f"{left} of {len(read)} traces hold no GPU work and are left out.")
    if _ranks_clash(traces):
        order = sorted(range(len(traces)), key=lambda k: (*_place(traces[k]), used[k][0].name))
        used = [used[k] for k in order]
        traces = [trace.with_rank(rank) for rank, trace in enumerate(traces[k] for k in order)]
        notes.append(f"The names of the {len(traces)} traces tell no ranks: they are numbered by device, then process.")
    merged = merge(traces)
    sites, used_marks = _sites(marks, merged)
    merged = replace(merged, sites=sites, warnings=(*merged.warnings, *notes))
    return Gathered(merged, [path for path, _ in used], used_marks)


def _ranks_clash(traces: Sequence[Trace]) -> bool:
    ranks = [int(rank) for trace in traces for rank in trace.kernels["rank"].unique()]
    return len(set(ranks)) < len(ranks)


def _place(trace: Trace) -> tuple[int, int]:
    return int(trace.kernels["device"].min()), int(trace.kernels["process"].min())


def _sites(marks: Sequence[Path], trace: Trace) -> tuple[pd.DataFrame, list[Path]]:
    """Sites of every process's marks, given to the rank that the process has in the trace."""
    known = trace.kernels[["process", "rank"]].drop_duplicates("process")
    rank_of = dict(zip(known["process"].tolist(), known["rank"].tolist(), strict=True))
    parts, used = [], []
    for path in marks:
        try:
            head = json.loads(path.read_text(encoding="utf-8").partition("\n")[0])
            rows = read_provenance(path)
        except (OSError, ValueError, FusionScopeError):
            # A process that was killed while it wrote its first line left nothing to read.
            continue
        parts.append(rows.assign(rank=rank_of.get(head.get("pid", -1), int(head.get("rank", -1)))))
        used.append(path)
    if not parts:
        return table("sites"), []
    plain = [part.astype({c: "object" for c in part.columns if part[c].dtype == "category"}) for part in parts]
    return table("sites", pd.concat(plain, ignore_index=True)), used
