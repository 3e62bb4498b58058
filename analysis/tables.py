"""An attribution as rows: the document of `fusionscope attribute`, and the kernel tables of other reports."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from fusionscope.analysis.attribution import Attribution
from fusionscope.analysis.forwards import Forward


def kernel_rows(
    forward: Forward, roles: list[str], columns: NDArray[np.int64] | None = None
) -> list[dict[str, object]]:
    """Launches by name, most time first.

    `median_ns` is over all launches of all replays, `kernel_time_ns` the median over replays of their sum.
    """
    chosen = np.arange(forward.launches) if columns is None else columns
    by_name: dict[str, list[int]] = {}
    names = forward.nodes["name"].astype(str).to_numpy()
    for column in chosen:
        by_name.setdefault(str(names[column]), []).append(int(column))
    rows: list[dict[str, object]] = []
    for name, places in by_name.items():
        durations = forward.duration[:, places]
        rows.append(
            {
                "name": name,
                "role": roles[places[0]],
                "launches": len(places),
                "median_ns": number(np.median(durations)),
                "kernel_time_ns": number(np.median(durations.sum(axis=1))),
            }
        )
    return sorted(rows, key=lambda r: (-float(str(r["kernel_time_ns"])), str(r["name"])))


def number(value: float | np.floating | np.integer) -> int | float:
    """A JSON number: whole nanoseconds stay integers, medians may end in .5."""
    exact = float(value)
    return int(exact) if exact.is_integer() else exact


def report(attribution: Attribution, everything: list[Forward]) -> dict[str, object]:
    """The attribution as the JSON document of `fusionscope attribute`."""
    forward = attribution.forward
    span = float(np.median(forward.span)) or 1.0
    boundaries = []
    for kind, sites in attribution.sites.items():
        columns = attribution.columns(kind)
        time = float(np.median(forward.duration[:, columns].sum(axis=1))) if len(columns) else 0.0
        boundaries.append(
            {
                "boundary": kind,
                "sites": len(sites),
                "subtypes": dict(Counter(s.subtype for s in sites)),
                "paths": dict(Counter(s.path for s in sites if s.path)),
                "launches": len(columns),
                "kernel_time_ns": number(time),
                "share": time / span,
                "rung": attribution.rungs[kind],
                "nested": attribution.nested(kind),
                "kernels": kernel_rows(forward, attribution.roles, columns),
            }
        )
    covered = attribution.coverage()
    taken = {c for sites in attribution.sites.values() for s in sites for c in s.columns}
    unknown = [c for c in range(forward.launches) if c not in taken and not attribution.roles[c]]
    rest = kernel_rows(forward, attribution.roles, np.array(unknown, dtype=np.int64))
    return {
        "rank": forward.rank,
        "forward": {
            "kind": forward.kind,
            "launches": forward.launches,
            "replays": forward.replays,
            "graph_launches": forward.graph_launches,
            "kernel_time_ns": number(np.median(forward.kernel_time)),
            "busy_time_ns": number(np.median(forward.busy_time)),
            "span_ns": number(np.median(forward.span)),
            "abutting": forward.abutting,
        },
        "forwards": [
            {
                "kind": f.kind,
                "launches": f.launches,
                "replays": f.replays,
                "kernel_time_ns": number(np.median(f.kernel_time)),
            }
            for f in everything
        ],
        "boundaries": boundaries,
        "kernels": kernel_rows(forward, attribution.roles),
        "coverage": {
            "by_rung": covered,
            "unattributed": [{k: row[k] for k in ("name", "launches", "kernel_time_ns")} for row in rest],
        },
        "warnings": list(attribution.warnings),
    }
