"""The Markdown of a pull request as it will appear, and as text to copy."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from fusionscope.analysis.summary import markdown
from fusionscope.dashboard import controls, parts, urls
from fusionscope.dashboard.library import Library
from fusionscope.profiler.errors import FusionScopeError

TITLE = "Summary"
_OPEN, _HEAD, _CLOSE = "<details><summary>", "</summary>", "</details>"


def page(library: Library, query: urls.Query) -> Component:
    """The page `/summary`: `base`, `candidate`, `margin`."""
    base, candidate, margin = query.text("base"), query.text("candidate"), query.margin()
    options = controls.runs(library)
    choice = html.Div(
        [
            controls.select("base", "Base", options, base or None, go=True, wide=True, placeholder="choose a run"),
            controls.select(
                "candidate", "Candidate", options, candidate or None, go=True, wide=True, placeholder="choose a run"
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
        text = markdown(library.comparison(base, candidate, margin), margin)
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
            parts.section("As it will appear", html.Div(rendered(text), className="fs-markdown")),
            parts.section("Source", source, note=f"{len(text):,} characters; GitHub takes up to 65,536."),
        ]
    )


def rendered(text: str) -> list[Component]:
    """Markdown with its folds, without letting any HTML of a trace through."""
    made: list[Component] = []
    rest = text
    while _OPEN in rest:
        before, _, rest = rest.partition(_OPEN)
        head, _, rest = rest.partition(_HEAD)
        inner, _, rest = rest.partition(_CLOSE)
        made += [*_markdown(before), html.Details([html.Summary(head), *_markdown(inner)])]
    return [*made, *_markdown(rest)]


def _markdown(text: str) -> list[Component]:
    return [dcc.Markdown(text, dangerously_allow_html=False, link_target="_blank")] if text.strip() else []
