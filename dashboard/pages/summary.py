"""The Markdown of a pull request as it will appear, and as text to copy."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from fusionscope.analysis.summary import Options, blocks, markdown
from fusionscope.dashboard import controls, parts, urls
from fusionscope.dashboard.library import Library
from fusionscope.dashboard.rendered import rendered
from fusionscope.profiler.errors import FusionScopeError

TITLE = "Summary"


def page(library: Library, query: urls.Query) -> Component:
    """The page `/summary`: `base`, `candidate`, `margin`."""
    base, candidate, margin = query.text("base"), query.text("candidate"), query.margin()
    runs = controls.runs(library)
    choice = html.Div(
        [
            controls.select("base", "Base", runs, base or None, go=True, wide=True, placeholder="choose a run"),
            controls.select(
                "candidate", "Candidate", runs, candidate or None, go=True, wide=True, placeholder="choose a run"
            ),
            controls.number("margin", "Margin (% of the step)", margin * 100, low=0, high=99, step=0.1, go=True),
        ],
        className="fs-controls",
    )
    lead = "What a reviewer reads in the pull request."
    if not base or not candidate:
        hint = parts.alert("Choose the run before and the run after the fusion.", colour="blue")
        return html.Div([parts.title("Summary", lead), choice, hint])
    try:
        found = library.comparison(base, candidate, margin)
        options = Options(margin, command=f"fusionscope summary {base} {candidate} --margin {margin:.4g}")
        text = markdown(found, margin, options)
    except FusionScopeError as error:
        return html.Div([parts.title("Summary", lead), choice, parts.alert(str(error), "No summary")])
    actions = [
        dcc.Clipboard(id="copy-summary", content=text, className="fs-button", title="Copy the Markdown"),
        parts.save(urls.download("summary.md", base=base, candidate=candidate, margin=f"{margin * 100:g}"), "Markdown"),
        parts.link("Compare", urls.compare(base, [candidate]), button=True),
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
