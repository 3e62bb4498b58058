"""One run: a forward of one rank, its boundaries, timeline, kernels, gaps, ranks, coverage, environment."""

from __future__ import annotations

import numpy as np
from dash import Patch, html
from dash.development.base_component import Component

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.tables import report
from fusionscope.analysis.timeline import Timeline, timeline
from fusionscope.analysis.verdict import us
from fusionscope.dashboard import controls, grid, parts, tables, urls
from fusionscope.dashboard.figures import boundaries as bars
from fusionscope.dashboard.figures import timeline as drawn
from fusionscope.dashboard.library import Library
from fusionscope.dashboard.pages import run_parts
from fusionscope.profiler.errors import FusionScopeError

GAPS = 12
_KERNEL_WIDTHS = (180, 130, 150, 110, 120, 120, 130, 300)


def page(library: Library, ref: str, query: urls.Query) -> Component:
    """The page `/run/<id>`; `rank`, `forward`, `site` and `k` (a search among kernels) stand in the query."""
    opened = library.run(ref)
    head = [run_parts.head(opened)]
    try:
        run = library.analysed(ref, query.rank(), query.text("forward"))
    except FusionScopeError as error:
        # What is known without kernels is shown all the same.
        return html.Div([*head, parts.alert(str(error), "No forward to show"), *run_parts.untraced(opened),
                         run_parts.environment(opened)])  # fmt: skip
    shown = timeline(run.attribution)
    return html.Div(
        [
            *head,
            _choice(run),
            _stats(run),
            *[parts.alert(text, colour="yellow") for text in _warnings(run)],
            _boundaries(run),
            _timeline(run, shown, query),
            _kernels(run, query),
            _gaps(run, shown),
            run_parts.ranks(opened, run),
            _coverage(run),
            run_parts.environment(opened),
        ]
    )


def zoom(library: Library, ref: str, query: urls.Query, key: str | None) -> Patch:
    """The timeline's new view when a site is chosen (None: the whole forward)."""
    run = library.analysed(ref, query.rank(), query.text("forward"))
    shown = timeline(run.attribution)
    site = controls.site_of(run, key)
    view = Patch()
    view["layout"]["annotations"] = [] if site is None else drawn.names_in(shown, site)
    if site is None:
        view["layout"]["xaxis"]["autorange"] = True
    else:
        view["layout"]["xaxis"]["autorange"] = False
        view["layout"]["xaxis"]["range"] = drawn.window(shown, site)
    return view


def _choice(run: Analysed) -> Component:
    ranks = sorted(int(r) for r in run.run.trace.kernels["rank"].unique())
    made = [controls.select("rank", "Rank", [(str(r), f"rank {r}") for r in ranks], str(run.forward.rank), go=True)]
    if len(run.forwards) > 1:
        kinds = [(f.kind, f"{f.launches:,} launches, {f.replays} replays ({f.kind})") for f in run.forwards]
        made.append(controls.select("forward", "Kind of forward", kinds, run.forward.kind, go=True, wide=True))
    return html.Div(made, className="fs-controls") if len(ranks) > 1 or len(run.forwards) > 1 else html.Div()


def _stats(run: Analysed) -> Component:
    forward = run.forward
    kernel, busy, span = (float(np.median(v)) for v in (forward.kernel_time, forward.busy_time, forward.span))
    rows = [
        ("Launches", f"{forward.launches:,}", "of one forward"),
        ("Replays", f"{forward.replays:,}", "traced, warm-up left out"),
        ("Kernel time", us(kernel), "sum of durations, traced"),
        ("Busy", us(busy), f"{busy / span:.1%} of the span"),
        ("Span", us(span), "first start to last end, traced"),
        ("Gaps", us(span - busy), f"{(span - busy) / span:.1%} of the span"),
    ]
    base = run.untraced
    if base is None:
        rows.append(("Untraced step", "unknown", "no replay times without a profiler"))
    else:
        floor = "noise floor unknown" if base.mde_ns is None else f"noise floor {us(base.mde_ns)}"
        rows.append(("Step", us(base.median_ns), f"{base.source}; {floor}"))
    return parts.stats(rows)


def _warnings(run: Analysed) -> list[str]:
    told = [*run.run.info.warnings, *run.run.trace.warnings, *run.attribution.warnings]
    if run.forward.abutting:
        told.append("Launches abut: durations contain the dispatch, and no gap is left for a fusion to drop.")
    if run.forward.replays == 0:
        told.append("Eager, without step ranges: one forward, so no interval can be given.")
    return list(dict.fromkeys(told))


def _boundaries(run: Analysed) -> Component:
    told = report(run.attribution, run.forwards)["boundaries"]
    ident = run.info.id
    rows = tables.boundaries(run)
    links = [
        {**row, "Boundary": parts.link(row["Boundary"], urls.estimate(ident, boundary=row["Boundary"], rank=_rank(run)))
         if row["Sites"] else row["Boundary"]}
        for row in rows
    ]  # fmt: skip
    if any(row["Sites"] for row in rows):
        shown = parts.figure(
            "plot-boundaries",
            bars.bars(told),  # type: ignore[arg-type]
            "Kernel time by boundary, one segment a kernel. Shares of nested kinds are never added up.",
            f"{run.title}-boundaries",
        )
    else:
        shown = parts.alert(
            "This forward has no site of a known kind. `fusionscope suggest` finds chains of small kernels that "
            "repeat, and a rules file (--rules) names them as boundaries of your own.",
            "0 sites",
            "blue",
        )
    return parts.section(
        "Boundaries",
        shown,
        parts.table(
            links, "Boundaries of one forward", ("Boundary", "Subtypes", "Paths", "Launches × median", "Nested in")
        ),
        note="Places where several launches can be one kernel. Choose a boundary to estimate what fusing it saves.",
        actions=[parts.save(urls.download("boundaries.csv", run=ident, rank=_rank(run), forward=_forward(run)))],
    )


def _timeline(run: Analysed, shown: Timeline, query: urls.Query) -> Component:
    site = controls.site_of(run, query.text("site"))
    return parts.section(
        "Timeline",
        controls.sites(run, site),
        parts.figure(
            "plot-timeline",
            drawn.timeline(shown, site),
            f"Replay {shown.replay} of {len(run.forward.span)}, the one with the median span ({us(shown.span)}).",
            f"{run.title}-timeline",
        ),
        note="Drag to zoom, double-click for the whole forward; a click on a name in the legend hides it.",
        actions=[parts.save(urls.download("timeline.csv", run=run.info.id, rank=_rank(run), forward=_forward(run)))],
    )


def _kernels(run: Analysed, query: urls.Query) -> Component:
    rows = tables.kernels(run)
    columns = [grid.column(name, rows, minWidth=width) for name, width in zip(rows[0], _KERNEL_WIDTHS, strict=True)]
    columns[0] |= {"pinned": "left", "width": 250}
    columns[-1]["flex"] = 1
    return parts.section(
        "Kernels",
        html.Div(grid.search("k", query.text("k"), "Search kernels, roles, boundaries"), className="fs-toolbar"),
        grid.grid(
            "k",
            columns,
            rows,
            height=min(58 + 34 * len(rows), 460),
            label="Kernels of one forward",
            options={"quickFilterText": query.text("k")},
        ),
        note=f"{len(rows)} kernels, {run.forward.launches:,} launches of one forward; medians over all replays.",
        actions=[parts.save(urls.download("kernels.csv", run=run.info.id, rank=_rank(run), forward=_forward(run)))],
    )


def _gaps(run: Analysed, shown: Timeline) -> Component:
    rows = tables.largest_gaps(shown)
    total = sum(row["Gap (us)"] for row in rows)
    inside = sum(row["Gap (us)"] for row in rows if row["Boundary"])
    return parts.section(
        "Gaps",
        parts.table(rows[:GAPS], f"The {min(GAPS, len(rows))} longest gaps", ("After", "Before", "Boundary")),
        note=(
            f"{len(rows):,} gaps, {total:,.1f} us in all: times in which no stream runs anything. {inside:,.1f} us lie "
            "between two launches of one site, and go when it becomes one launch."
        ),
        actions=[parts.save(urls.download("gaps.csv", run=run.info.id, rank=_rank(run), forward=_forward(run)))],
    )


def _coverage(run: Analysed) -> Component:
    told = report(run.attribution, run.forwards)["coverage"]
    unknown = tables.unattributed(told)
    body = [
        parts.figure(
            "plot-coverage",
            bars.coverage(run.attribution.coverage(), run_parts.RUNGS),
            "Share of kernel time by the best rung that knows each launch.",
            f"{run.title}-coverage",
        )
    ]
    if unknown:
        body.append(parts.table(unknown[:8], "The largest kernels that no rule knows", ("Kernel",)))
    return parts.section("Coverage", *body, note="How the boundary of each launch is known; rung 1 is exact.")


def _rank(run: Analysed) -> int | str:
    return run.forward.rank or ""


def _forward(run: Analysed) -> str:
    return run.forward.kind if run.forward is not run.forwards[0] else ""
