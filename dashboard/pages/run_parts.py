"""The parts of a run's page that need no forward: its head, ranks, environment."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from fusionscope.analysis import noise
from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.ranks import Ranks
from fusionscope.analysis.ranks import ranks as beside
from fusionscope.analysis.verdict import us
from fusionscope.dashboard import parts, urls
from fusionscope.dashboard.figures import ranks as drawn
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.store import Run

#: How a launch's boundary is known, as docs/reading-a-report.md numbers it.
RUNGS = {
    "1": "graph nodes (rung 1)",
    "2": "ranges (rung 2)",
    "3": "place in the replay (rung 3)",
    "4": "rules by name (rung 4)",
    "role": "known kernel outside boundaries",
    "none": "unknown kernel",
}


def head(run: Run) -> Component:
    """Name, labels, what ran, and where to go from here."""
    info = run.info
    machine = {**run.trace.machine, **info.machine}
    told = [
        info.model or "unknown model (imported)",
        machine.get("gpu") or ("CPU" if info.device == "cpu" else "unknown GPU"),
        *([f"TP{info.tp}"] if info.tp > 0 else []),
        *([f"batch {info.batch}"] if info.batch > 0 else []),
        *([f"context {info.context:,} tokens"] if info.context > 0 else []),
        *([f"paths {', '.join(f'{k}={v}' for k, v in info.paths.items())}"] if info.paths else []),
        f"recorded by {info.profiler}" if info.profiler else "imported",
        f"created {info.created[:16].replace('T', ' ')} UTC",
    ]
    actions = [
        parts.link("Estimate", urls.estimate(info.id), button=True),
        parts.link("Compare with …", urls.compare(info.id), button=True),
    ]
    return parts.title(info.name or info.id, [parts.badges(info.labels), html.Span(" · ".join(told))], actions)


def untraced(run: Run) -> list[Component]:
    """Replay times of a run without kernels."""
    found = noise.baseline(run.trace.timings)
    if found is None:
        return []
    floor = "unknown" if found.mde_ns is None else us(found.mde_ns)
    rows = [
        ("Step", us(found.median_ns), f"median, {found.source}"),
        ("Noise floor", floor, f"{found.blocks} blocks, {found.processes} processes"),
    ]
    return [parts.stats(rows)]


def environment(run: Run) -> Component:
    """Everything recorded of how the run was made."""
    info = run.info
    machine = {**run.trace.machine, **info.machine}
    known = {
        "id": info.id,
        "stored in": html.Code(str(run.path)),
        "command": html.Code(" ".join(info.command)) if info.command else "unknown",
        "FusionScope": info.tool_version or "unknown",
        "tracing mode": info.tracing_mode or "unknown",
        "ranks": f"{run.trace.kernels['rank'].nunique()} traced, {info.world_size or 'unknown'} in the run",
        **{f"path of {kind}": path for kind, path in info.paths.items()},
        **{f"machine: {key}": value for key, value in machine.items()},
        **{f"environment: {key}": html.Code(value) for key, value in info.environment.items()},
        **{f"setting: {key}": value for key, value in info.settings.items()},
        **{f"input: {i.path}": html.Code(f"sha256 {i.sha256}") for i in info.inputs},
        **{f"declined {k}": f"{d.boundary} {d.subtype} layer {d.layer}, {d.path}: {d.declined}"
           for k, d in enumerate(info.declines)},
    }  # fmt: skip
    return parts.section("Environment", parts.facts(known, "How the run was made"))


def ranks(opened: Run, run: Analysed) -> Component:
    """All ranks beside each other; one alone says what that hides."""
    present = sorted(int(r) for r in opened.trace.kernels["rank"].unique())
    if len(present) < 2:
        text = "One rank was traced"
        text += " of emulated ranks: nothing waits for a peer." if opened.info.emulated_ranks else (
            ": what of an all-reduce is waiting for other ranks cannot be told."
        )  # fmt: skip
        return parts.section("Ranks", html.P(text, className="fs-note"))
    try:
        found = beside(opened, run.rules)
    except FusionScopeError as error:
        return parts.section("Ranks", parts.alert(str(error), colour="yellow"))
    rows = [
        {
            "Rank": parts.link(f"rank {row.rank}", urls.run(opened.info.id, rank=row.rank)),
            "Launches": row.launches,
            "Replays": row.replays,
            "Span (us)": f"{row.span_ns / 1000:,.1f}",
            "All-reduce (us)": _sum(row.reduce_ns),
            "Transfer (us)": _sum(row.transfer_ns),
            "Wait (us)": _sum(row.wait_ns),
            "Came last": "unknown" if row.last is None else f"{row.last} of {found.occurrences}",
        }
        for row in found.rows
    ]
    spans = [row.span_ns for row in found.rows]
    skew = f"Spans differ by {us(max(spans) - min(spans))}, the slowest is rank {found.slowest.rank}. "
    known = f"Who came last is known by {found.last_by}. " if found.last_by else ""
    return parts.section(
        "Ranks",
        *[parts.alert(note, colour="yellow") for note in found.notes],
        *_waiting(found, run.title),
        parts.table(rows, "All ranks; sums over all replays, spans are medians", ("Rank",)),
        note=skew + known + "The shortest all-reduce of an occurrence is its transfer, the rest is wait, which no "
        "fusion removes.",
    )


def _waiting(found: Ranks, title: str) -> list[Component]:
    if not found.occurrences:
        return []
    caption = f"{found.occurrences:,} all-reduces in which the ranks met."
    return [parts.figure("plot-ranks", drawn.waiting(found), caption, f"{title}-ranks")]


def _sum(ns: int | None) -> str:
    return "unknown" if ns is None else f"{ns / 1000:,.1f}"
