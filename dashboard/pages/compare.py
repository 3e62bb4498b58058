"""Two or more runs: totals, where the difference comes from, kernels, boundaries, aligned timelines."""

from __future__ import annotations

import plotly.graph_objects as go
from dash import html
from dash.development.base_component import Component

from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.names import short
from fusionscope.analysis.sites import Site
from fusionscope.analysis.timeline import timeline
from fusionscope.analysis.waterfall import waterfall
from fusionscope.dashboard import controls, grid, parts, tables, urls
from fusionscope.dashboard.figures import boundaries as bars
from fusionscope.dashboard.figures import timeline as drawn
from fusionscope.dashboard.figures import waterfall as falls
from fusionscope.dashboard.library import Library
from fusionscope.profiler.errors import FusionScopeError

TITLE = "Compare"
_KERNEL_WIDTHS = (180, 120, 120, 105, 130, 110, 130, 110, 130, 130, 120, 300)


def page(library: Library, query: urls.Query) -> Component:
    """The page `/compare`: `base`, `candidate` (may be repeated), `margin`, `show`, `anyway`, `site`, `k`."""
    base, candidates = library.id_of(query.text("base")), [library.id_of(c) for c in query.texts("candidate")]
    margin = query.margin()
    shown = library.id_of(_shown(query))
    options = controls.runs(library)
    names = dict(options)
    lead = f"{names.get(shown, shown)} against {names.get(base, base)}." if base and shown else _LEAD
    body: list[Component] = [parts.title("Compare", lead, _actions(base, shown, margin))]
    body.append(_choice(options, base, candidates, shown, margin))
    if not base or not candidates:
        body.append(parts.alert("Choose a base and one or more candidates.", colour="blue"))
        return html.Div(body)
    try:
        runs = [library.analysed(ref) for ref in (base, *candidates)]
        found = library.comparison(base, shown, margin)
    except FusionScopeError as error:
        return html.Div([*body, parts.alert(str(error), "These runs cannot be compared")])
    body += _labels(found)
    if found.incomparable and not query.text("anyway"):
        return html.Div([*body, _refusal(found, base, candidates)])
    if found.incomparable:
        body.append(parts.alert(_fields(found.incomparable), "Compared anyway: times are of different work"))
    if found.doubts:
        body.append(parts.alert(_fields(found.doubts), "Compare with care", "yellow"))
    body += _answer(found)
    body.append(_totals(tables.totals(runs), base, candidates))
    body += [_waterfall(found), _boundaries(found), _kernels(found, query), _timelines(found, query), _differs(found)]
    return html.Div(body)


def aligned(library: Library, query: urls.Query, key: str | None) -> go.Figure:
    """Both timelines of the page, the site `kind:number` of both sides starting together."""
    return _aligned(library.comparison(query.text("base"), _shown(query)), key)


def _shown(query: urls.Query) -> str:
    """The candidate whose details the page shows."""
    candidates = query.texts("candidate")
    return query.text("show") if query.text("show") in candidates else (candidates or [""])[0]


_LEAD = "What a candidate changed against a base."


def _actions(base: str, shown: str, margin: float) -> list[Component]:
    if not base or not shown:
        return []
    values = {"base": base, "candidate": shown, "margin": f"{margin * 100:g}"}
    return [
        parts.link("Summary for a pull request", urls.summary(**values), button=True),
        parts.save(urls.download("summary.md", **values), "Markdown"),
    ]


def _choice(options: list[tuple[str, str]], base: str, candidates: list[str], shown: str, margin: float) -> Component:
    made = [
        controls.select("base", "Base", options, base or None, go=True, wide=True, placeholder="choose a run"),
        controls.several("candidate", "Candidates", options, candidates),
        controls.number("margin", "Margin (% of the step)", margin * 100, low=0, high=99, step=0.1, go=True),
    ]
    if len(candidates) > 1:
        names = dict(options)
        shown_options = [(ref, names.get(ref, ref)) for ref in candidates]
        made.append(controls.select("show", "Details of", shown_options, shown, go=True, wide=True))
    return html.Div(made, className="fs-controls")


def _labels(found: Comparison) -> list[Component]:
    sides = [("base", found.base), ("candidate", found.candidate)]
    told = [
        html.Div([html.Strong(f"{name}: "), parts.link(run.title, urls.run(run.info.id)), " ",
                  parts.badges(run.info.labels)])
        for name, run in sides
    ]  # fmt: skip
    return [html.Div(told, className="fs-sides")]


def _fields(fields: dict[str, tuple[str, str]]) -> str:
    return "; ".join(f"{name}: {a} in the base, {b} in the candidate" for name, (a, b) in fields.items()) + "."


def _refusal(found: Comparison, base: str, candidates: list[str]) -> Component:
    return parts.alert(
        [
            html.P(_fields(found.incomparable)),
            parts.link("Compare anyway", urls.compare(base, candidates, anyway=1, show=found.candidate.info.id), True),
        ],
        "Not comparable: these runs did different work, so no difference of their times is shown",
    )


def _answer(found: Comparison) -> list[Component]:
    fired = found.fired
    if fired is not None:
        text = f"{fired.boundary} fired at {fired.told()}."
        colour = "green"
    elif found.same_sequence:
        text, colour = "Did not fire: both runs launch the same kernels in the same order.", "yellow"
    else:
        text, colour = "No known boundary takes fewer launches in the candidate.", "yellow"
    made = [parts.alert(text, "Did the fusion fire?", colour)]
    made += [
        parts.alert(
            f"{n} sites of {boundary} vanished and {short(kernel)} appears as often: if it is the fused kernel, name "
            "it under `fused` in a rules file (--rules). Nothing was subtracted.",
            "A kernel that no rule knows",
            "yellow",
        )
        for kernel, n, boundary in found.suspects
    ]
    if found.measured is not None and not found.incomparable:
        made.append(parts.verdict(found.measured, f"{found.measured.kind}, {found.source}"))
    elif found.measured is None:
        made.append(
            parts.alert("No replay times without a profiler on both sides, so nothing was measured.", "", "blue")
        )
    return made


def _totals(rows: tables.Rows, base: str, candidates: list[str]) -> Component:
    """A line a total, with the columns of each run beside each other."""
    titles = list(dict.fromkeys(row["Run"] for row in rows))
    lines: dict[str, dict[str, object]] = {}
    for row in rows:
        line = lines.setdefault(row["Total"], {"One forward": row["Total"]} | dict.fromkeys(_columns(titles), "–"))
        decimals = 0 if row["Total"] == "Launches" else 1
        line[row["Run"]] = f"{row['Value']:,.{decimals}f}"
        if row["Run"] != titles[0] and row["Difference"] is not None:
            line[f"{row['Run']}: difference"] = f"{row['Difference']:+,.{decimals}f} ({row['Difference (%)']:+.2f} %)"
    return parts.section(
        "Totals",
        parts.table(list(lines.values()), "Differences are to the base", ("One forward",)),
        note="Traced, medians over replays, but for the untraced step. Kernel time is a sum and no time of a step.",
        actions=[parts.save(urls.compare_file("totals.csv", base, candidates))],
    )


def _columns(titles: list[str]) -> list[str]:
    return [titles[0], *(name for title in titles[1:] for name in (title, f"{title}: difference"))]


def _waterfall(found: Comparison) -> Component:
    steps = waterfall(found)
    return parts.section(
        "Where the difference comes from",
        parts.figure(
            "plot-waterfall",
            falls.waterfall(steps),
            "The steps add up to the difference of the median traced spans.",
            f"{found.base.title}-{found.candidate.title}-waterfall",
        ),
    )


def _boundaries(found: Comparison) -> Component:
    rows = tables.compared_boundaries(found, everything=False)
    figure_rows = [
        {"name": r["Boundary"], "base_us": r["Kernel time (us)"], "candidate_us": r["Kernel time after (us)"]}
        for r in rows
    ]
    return parts.section(
        "Boundary by boundary",
        parts.figure(
            "plot-pairs", bars.pairs(figure_rows), "Kernel time of each boundary, traced.",
            f"{found.base.title}-{found.candidate.title}-boundaries",
        ),
        parts.table(rows, "Boundaries of both sides", ("Boundary", "Rungs")),
        actions=[_save("compared-boundaries.csv", found)],
    )  # fmt: skip


def _kernels(found: Comparison, query: urls.Query) -> Component:
    rows = tables.compared_kernels(found)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["Status"]] = counts.get(row["Status"], 0) + 1
    columns = [grid.column(name, rows, minWidth=width) for name, width in zip(rows[0], _KERNEL_WIDTHS, strict=True)]
    columns[0] |= {"pinned": "left", "width": 230}
    columns[2] |= {"cellRenderer": "FsStatus"}
    columns[-1]["flex"] = 1
    note = ", ".join(f"{n} {status}" for status, n in counts.items())
    return parts.section(
        "Kernels",
        html.Div(grid.search("k", query.text("k"), "Search kernels and statuses"), className="fs-toolbar"),
        grid.grid(
            "k",
            columns,
            rows,
            height=min(58 + 34 * len(rows), 460),
            label="Kernels of both sides",
            options={"quickFilterText": query.text("k")},
        ),
        note=f"{note}. Untouched kernels are the controls: nothing should move them.",
        actions=[_save("compared-kernels.csv", found)],
    )


def _timelines(found: Comparison, query: urls.Query) -> Component:
    common = common_sites(found)
    key = query.text("site")
    options = [(name, drawn.site_name(pair[0])) for name, pair in common.items()]
    return parts.section(
        "Timelines",
        controls.stepping("Align at a site", options, key if key in common else None, "the first launch"),
        parts.figure(
            "plot-aligned",
            _aligned(found, key),
            "One replay of each side, the one with the median span.",
            f"{found.base.title}-{found.candidate.title}-timelines",
        ),
        note="Drag to zoom, double-click for the whole. Choose a site to see both sides start it together.",
    )


def common_sites(found: Comparison) -> dict[str, tuple[Site, Site]]:
    """Sites that both sides have, by kind and number."""
    sides = [
        {controls.site_key(s): s for sites in run.attribution.sites.values() for s in sites}
        for run in (found.base, found.candidate)
    ]
    return {key: (site, sides[1][key]) for key, site in sides[0].items() if key in sides[1]}


def _aligned(found: Comparison, key: str | None) -> go.Figure:
    pair = common_sites(found).get(key or "")
    return drawn.aligned(timeline(found.base.attribution), timeline(found.candidate.attribution), pair)


def _differs(found: Comparison) -> Component:
    rows = [{"Field": name, "Base": a or "unset", "Candidate": b or "unset"} for name, (a, b) in found.differs.items()]
    imported = any(run.info.imported for run in (found.base, found.candidate))
    note = "An imported run does not say all that was chosen, so more may differ." if imported else None
    made = parts.table(rows, "Recorded and different", ("Field", "Base", "Candidate"))
    return parts.section("What differs", made if rows else html.P("Nothing that was recorded."), note=note)


def _save(name: str, found: Comparison) -> Component:
    return parts.save(urls.compare_file(name, found.base.info.id, [found.candidate.info.id]))
