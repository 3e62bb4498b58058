"""The Markdown of a pull request as it will appear, and as text to copy."""

from __future__ import annotations

import shlex

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.summary import Options, blocks, markdown
from fusionscope.dashboard import controls, parts, urls
from fusionscope.dashboard.library import Library
from fusionscope.dashboard.rendered import rendered
from fusionscope.profiler.errors import FusionScopeError

TITLE = "Summary"


def page(library: Library, query: urls.Query) -> Component:
    """The page `/summary`: `base`, `candidate` (may be repeated), `margin`."""
    base, candidates = library.id_of(query.text("base")), [library.id_of(c) for c in query.texts("candidate")]
    margin = query.margin()
    runs = controls.runs(library)
    choice = html.Div(
        [
            controls.select("base", "Base", runs, base or None, go=True, wide=True, placeholder="choose a run"),
            controls.several("candidate", "Candidates", runs, candidates),
            controls.number("margin", "Margin (% of the step)", margin * 100, low=0, high=99, step=0.1, go=True),
        ],
        className="fs-controls",
    )
    lead = "What a reviewer reads in the pull request."
    if not base or not candidates:
        hint = parts.alert("Choose the run before and the run after the fusion.", colour="blue")
        return html.Div([parts.title("Summary", lead), choice, hint])
    try:
        found, options = asked(library, query)
        text = markdown(found, margin, options)
    except FusionScopeError as error:
        return html.Div([parts.title("Summary", lead), choice, parts.alert(str(error), "No summary")])
    actions = [
        parts.copy(text, "the Markdown"),
        parts.save(urls.compare_file("summary.md", base, candidates, margin=f"{margin * 100:g}"), "Markdown"),
        parts.link("Compare", urls.compare(base, candidates), button=True),
    ]
    source = dmc.Textarea(
        value=text, label="Markdown", readOnly=True, autosize=True, minRows=8, maxRows=18, className="fs-source"
    )
    return html.Div(
        [
            parts.title("Summary", lead, actions),
            choice,
            parts.section("As it will appear", html.Div(rendered(blocks(found, options)), className="fs-markdown")),
            parts.section("Source", source, note=f"{len(text):,} characters; GitHub takes up to 65,536."),
        ]
    )


def asked(library: Library, query: urls.Query) -> tuple[list[Comparison], Options]:
    """The comparisons that a query names, one a candidate, and what the summary says beside them.

    Raises FusionScopeError.
    """
    base, candidates, margin = query.text("base"), query.texts("candidate"), query.margin()
    if not base or not candidates:
        raise FusionScopeError("A summary needs a base and a candidate: choose both on the page.")
    command = shlex.join(["fusionscope", "summary", base, *candidates, "--margin", f"{margin * 100:g}%"])
    return [library.comparison(base, one, margin) for one in candidates], Options(margin, command=command)
