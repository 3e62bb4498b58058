"""The ranks of a run as the JSON of `fusionscope ranks`."""

from __future__ import annotations

from dataclasses import asdict

from fusionscope.analysis.ranks import Ranks
from fusionscope.analysis.tables import number


def document(found: Ranks) -> dict[str, object]:
    """Every field is documented in docs/reading-a-report.md."""
    other = found.other
    return {
        "world_size": found.world_size,
        "tokens": found.tokens,
        "occurrences": found.occurrences,
        "ranks": [
            asdict(row)
            | {
                "span_ns": number(row.span_ns),
                "forward_wait_ns": None if row.forward_wait_ns is None else number(row.forward_wait_ns),
            }
            for row in found.rows
        ],
        "slowest_rank": found.slowest.rank,
        "median_span_ns": None if found.median_span_ns is None else number(found.median_span_ns),
        "last_rank": found.last_rank,
        "last_by": found.last_by or None,
        "other_kernel": None
        if other is None
        else {
            "name": other.name,
            "rank": other.rank,
            "launches": {"rank": other.launches[0], "others": other.launches[1]},
            "kernel_time_ns": {"rank": number(other.last_ns), "others": number(other.others_ns)},
        },
        "notes": list(found.notes),
    }
