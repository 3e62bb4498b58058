"""Rows with the column names and units that people read: the same for a page's table and its CSV."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.changes import Change
from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.estimate import Estimate
from fusionscope.analysis.names import short
from fusionscope.analysis.predictions import Prediction
from fusionscope.analysis.tables import report
from fusionscope.analysis.timeline import Timeline, gaps
from fusionscope.dashboard.figures.timeline import site_name
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Listed

Rows = list[dict[str, Any]]


def us(ns: float) -> float:
    """us of ns, to the nanosecond."""
    return round(float(ns) / 1000, 3)


def runs(listed: Sequence[Listed]) -> Rows:
    """Every run; one that cannot be opened has its error and nothing else."""
    return [_run(item) for item in listed]


def _run(item: Listed) -> dict[str, Any]:
    info = item.info or RunInfo()
    cpu = (info.machine.get("cpu") or "CPU") if info.device == "cpu" else ""
    return {
        "Run": info.name or item.id,
        "Id": item.id,
        "Name": info.name,
        "Labels": ", ".join(info.labels),
        "Tags": ", ".join(info.tags),
        "Error": item.error,
        "Model": info.model,
        "GPU": info.machine.get("gpu") or cpu,
        "TP": _known(info.tp),
        "Batch": _known(info.batch),
        "Context (tokens)": _known(info.context),
        "Paths": ", ".join(f"{kind}={path}" for kind, path in info.paths.items()),
        "Profiler": info.profiler or ("imported" if info.imported else ""),
        "Created (UTC)": info.created[:16].replace("T", " "),
    }


def _known(value: int) -> int | None:
    return None if value < 0 else value


def boundaries(run: Analysed) -> Rows:
    """Every kind of boundary of the forward, also with no sites."""
    told: Any = report(run.attribution, run.forwards)
    return [
        {
            "Boundary": row["boundary"],
            "Sites": row["sites"],
            "Subtypes": ", ".join(f"{n} {s}" for s, n in row["subtypes"].items() if s),
            "Paths": ", ".join(f"{n} {p}" for p, n in row["paths"].items()),
            "Launches": row["launches"],
            "Launches × median": "; ".join(
                f"{short(k['name'])} {k['launches']} × {us(k['median_ns']):.2f} us" for k in row["kernels"]
            ),
            "Kernel time (us)": us(row["kernel_time_ns"]),
            "Share of the span (%)": round(100 * row["share"], 3),
            "Rung": row["rung"] if row["sites"] else "",
            "Nested in": ", ".join(f"{n} in {kind}" for kind, n in row["nested"].items()),
        }
        for row in told["boundaries"]
    ]


def kernels(run: Analysed) -> Rows:
    """Launches by kernel, most time first."""
    told: Any = report(run.attribution, run.forwards)
    inside: dict[str, set[str]] = {}
    for row in told["boundaries"]:
        for kernel in row["kernels"]:
            inside.setdefault(kernel["name"], set()).add(row["boundary"])
    whole = told["forward"]["kernel_time_ns"] or 1
    return [
        {
            "Kernel": short(row["name"]),
            "Role": row["role"],
            "Boundaries": ", ".join(sorted(inside.get(row["name"], ()))),
            "Launches": row["launches"],
            "Median (us)": us(row["median_ns"]),
            "Sum (us)": us(row["kernel_time_ns"]),
            "Share of kernel time (%)": round(100 * row["kernel_time_ns"] / whole, 3),
            "Full name": row["name"],
        }
        for row in told["kernels"]
    ]


def launches(shown: Timeline) -> Rows:
    """Every launch of one execution."""
    names = shown.names
    return [
        {
            "Launch": column,
            "Stream": shown.lanes[column],
            "Start (us)": us(shown.start[column]),
            "Duration (us)": us(shown.duration[column]),
            "Kernel": short(names[column]),
            "Boundary": shown.boundaries[column],
            "Sites": "; ".join(site_name(site) for site in shown.sites[column]),
            "Full name": names[column],
        }
        for column in range(len(names))
    ]


def largest_gaps(shown: Timeline, most: int | None = None) -> Rows:
    """Times in which nothing runs, the longest first."""
    names = shown.names
    found = sorted(gaps(shown), key=lambda g: (-g.length_ns, g.start_ns))[:most]
    return [
        {
            "At (us)": us(gap.start_ns),
            "Gap (us)": us(gap.length_ns),
            "After": short(names[gap.after]),
            "Before": short(names[gap.before]),
            "Boundary": shown.boundaries[gap.after]
            if set(shown.sites[gap.after]) & set(shown.sites[gap.before])
            else "",
        }
        for gap in found
    ]


def totals(runs_: Sequence[Analysed]) -> Rows:
    """Launches and times of one forward of each run, medians over its replays; differences are to the first."""
    rows: Rows = []
    first: dict[str, float] = {}
    for run in runs_:
        forward = run.forward
        values = {
            "Launches": float(forward.launches),
            "Kernel time (us)": us(np.median(forward.kernel_time)),
            "Busy (us)": us(np.median(forward.busy_time)),
            "Span (us)": us(np.median(forward.span)),
        }
        if run.untraced is not None:
            values["Untraced step (us)"] = us(run.untraced.median_ns)
        first = first or values
        for name, value in values.items():
            before = first.get(name)
            difference = None if before is None else round(value - before, 3)
            rows.append(
                {
                    "Total": name,
                    "Run": run.title,
                    "Value": int(value) if name == "Launches" else value,
                    "Difference": difference,
                    "Difference (%)": None if not before else round(100 * (value / before - 1), 3),
                }
            )
    return rows


def compared_kernels(found: Comparison) -> Rows:
    """Kernels of both sides; one in a boundary and elsewhere has two rows."""
    return [
        {
            "Kernel": short(row.name),
            "Where": row.where or "elsewhere",
            "Status": row.status,
            "Launches": row.base.launches,
            "Launches after": row.candidate.launches,
            "Median (us)": us(row.base.median_ns) if row.base.launches else None,
            "Median after (us)": us(row.candidate.median_ns) if row.candidate.launches else None,
            "Sum (us)": us(row.base.sum_ns),
            "Sum after (us)": us(row.candidate.sum_ns),
            "Difference (us)": us(row.difference_ns),
            "Role": row.role,
            "Full name": row.name,
        }
        for row in found.rows
    ]


def compared_boundaries(found: Comparison, everything: bool = True) -> Rows:
    """Boundaries of both sides."""

    def row(change: Change) -> dict[str, Any]:
        return {
            "Boundary": change.name,
            "Sites": change.base_sites,
            "Sites after": change.candidate_sites,
            "Fired at": change.fired_sites,
            "Launches": change.base_launches,
            "Launches after": change.candidate_launches,
            "Kernel time (us)": us(change.base_ns),
            "Kernel time after (us)": us(change.candidate_ns),
            "Difference (us)": us(change.candidate_ns - change.base_ns),
            "Rungs": f"{change.rung[0]}, {change.rung[1]}",
        }

    return [row(c) for c in found.changes if everything or c.base_sites or c.candidate_sites]


def estimate_rows(made: Sequence[tuple[str, Estimate]]) -> Rows:
    """One row an estimate, named by the first of each pair."""
    return [
        {
            "Run": name,
            "Boundary": f"{e.boundary}:{e.subtype}" if e.subtype else e.boundary,
            "Sites": e.sites,
            "Step (us)": us(e.span_ns),
            "Basis": e.basis,
            "Amdahl (%)": round(100 * e.amdahl_gain, 3),
            "Saving (us)": us(e.saving_ns),
            "Low 95 % (us)": us(e.interval_ns[0]),
            "High 95 % (us)": us(e.interval_ns[1]),
            "Saving (%)": round(100 * e.saving_ns / e.span_ns, 3),
            "Ceiling (us)": us(e.ceiling_ns),
            "Noise floor (us)": None if e.mde_ns is None else us(e.mde_ns),
            "Verdict": e.verdict.class_,
        }
        for name, e in made
    ]


def accuracy(found: Sequence[Prediction]) -> Rows:
    """Predicted and measured savings."""
    return [
        {
            "Boundary": p.boundary,
            "Base": p.base.name or p.base.id,
            "Candidate": p.candidate.name or p.candidate.id,
            "Batch": _known(p.base.batch),
            "Sites": p.sites,
            "Step (us)": us(p.predicted.span_ns),
            "Predicted (us)": us(p.predicted.saving_ns),
            "Predicted low (us)": us(p.predicted.interval_ns[0]),
            "Predicted high (us)": us(p.predicted.interval_ns[1]),
            "Measured (us)": us(p.measured_ns),
            "Measured low (us)": us(p.measured_interval_ns[0]),
            "Measured high (us)": us(p.measured_interval_ns[1]),
            "Known by": "several captures" if p.kind == "measured" else "one capture of an arm",
            "Error (% of the step)": round(100 * p.error_part, 3),
            "Within the interval": "yes" if p.held else "no",
            "Labels": ", ".join(p.candidate.labels),
        }
        for p in found
    ]


def unattributed(coverage: Any) -> Rows:
    """Kernels that lie in no boundary and have no known role (`coverage` of `analysis.tables.report`)."""
    return [
        {"Kernel": short(row["name"]), "Launches": row["launches"], "Sum (us)": us(row["kernel_time_ns"])}
        for row in coverage["unattributed"]
    ]
