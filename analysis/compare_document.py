"""A comparison as the JSON of `fusionscope compare`."""

from __future__ import annotations

import numpy as np

from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.paired_rows import Cell
from fusionscope.analysis.serving import Serving
from fusionscope.analysis.summary_lines import predicted, verdict_of
from fusionscope.analysis.summary_ranks import ranks_beside
from fusionscope.analysis.tables import number
from fusionscope.analysis.verdict import us, with_prediction


def document(found: Comparison, serving: Serving | None = None) -> dict[str, object]:
    """Every field is documented in docs/reading-a-report.md. Serving runs can forbid what is quoted."""

    def both(value: str) -> dict[str, object]:
        return {
            side: number(np.median(getattr(run.forward, value)))
            for side, run in (("base", found.base), ("candidate", found.candidate))
        }

    def cell(side: Cell) -> dict[str, object]:
        return {"launches": side.launches, "median_ns": number(side.median_ns), "sum_ns": number(side.sum_ns)}

    fired = found.fired
    return {
        "base": found.base.run.info.id,
        "candidate": found.candidate.run.info.id,
        "launches": {"base": found.base.forward.launches, "candidate": found.candidate.forward.launches},
        "kernel_time_ns": both("kernel_time"),
        "busy_time_ns": both("busy_time"),
        "span_ns": both("span"),
        "did_fire": fired is not None,
        "same_sequence": found.same_sequence,
        "fired": {
            name: getattr(fired, name) if fired else 0
            for name in ("sites", "of_sites", "replays", "of_replays", "ranks", "of_ranks")
        }
        | {"boundary": fired.boundary if fired else None},
        "suspects": [{"kernel": k, "launches": n, "boundary": b} for k, n, b in found.suspects],
        "kernels": [
            {
                "name": r.name,
                "role": r.role,
                "where": r.where or None,
                "base": cell(r.base),
                "candidate": cell(r.candidate),
                "difference_ns": number(r.difference_ns),
                "status": r.status,
            }
            for r in found.rows
        ],
        "boundaries": [
            {
                "boundary": c.boundary,
                "subtype": c.subtype,
                "sites": {"base": c.base_sites, "candidate": c.candidate_sites},
                "launches": {"base": c.base_launches, "candidate": c.candidate_launches},
                "kernel_time_ns": {"base": number(c.base_ns), "candidate": number(c.candidate_ns)},
                "fired_sites": c.fired_sites,
                "nested": c.nested,
                "rung": {"base": c.rung[0], "candidate": c.rung[1]},
            }
            for c in found.changes
        ],
        "measured": None
        if found.measured is None
        else {
            "saving_ns": number(found.measured_saving_ns or 0.0),
            "interval_ns": [number(v) for v in found.measured_interval_ns or ()],
            "mde_ns": None if found.mde_ns is None else number(found.mde_ns),
            "captures": None if found.captures is None else {"base": found.captures[0], "candidate": found.captures[1]},
            "between_captures_ns": number(found.between_ns) if found.between_ns else None,
            "verdict": found.measured.document(),
        },
        "quote": quote_of(found, serving),
        "ranks": ranks_document(found),
        "differs": _both(found.differs),
        "incomparable": _both(found.incomparable),
        "doubts": _both(found.doubts),
        "labels": {"base": found.base.info.labels, "candidate": found.candidate.info.labels},
    }


def _both(fields: dict[str, tuple[str, str]]) -> dict[str, dict[str, str]]:
    return {name: {"base": before, "candidate": after} for name, (before, after) in fields.items()}


def quote_of(found: Comparison, serving: Serving | None = None) -> str | None:
    """The one sentence of a comparison: what was measured decides, and the prediction stands beside it."""
    guess = predicted(found, found.margin)
    decided = verdict_of(found, guess, serving)
    if decided is None or guess is None or decided.kind == "predicted":
        return decided.quote if decided else None
    low, high = guess.interval_ns
    return with_prediction(decided, f"{us(guess.saving_ns)} [{us(low)}, {us(high)}]")


def ranks_document(found: Comparison) -> dict[str, object] | None:
    """Both sides over all their ranks, wait apart; None where one rank alone was traced of either."""
    sides = {"base": ranks_beside(found.base), "candidate": ranks_beside(found.candidate)}
    if any(len(side.rows) < 2 for side in sides.values()):
        return None
    return {
        name: {
            "slowest_rank": side.slowest.rank,
            "slowest_span_ns": number(side.slowest.span_ns),
            "median_span_ns": None if side.median_span_ns is None else number(side.median_span_ns),
            "transfer_ns": side.rows[0].transfer_ns,
            "forward_wait_ns": {
                str(row.rank): None if row.forward_wait_ns is None else number(row.forward_wait_ns) for row in side.rows
            },
            "notes": list(side.notes),
        }
        for name, side in sides.items()
    }
