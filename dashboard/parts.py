"""Small pieces that every page is made of: headings, badges, facts, tables, figures with their downloads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from fusionscope.analysis.verdict import BELOW_MARGIN, INCONCLUSIVE, NOT_MEASURABLE, SLOWER, WORTH_MERGING, Verdict

VERDICT_COLOURS = {
    WORTH_MERGING: "green",
    BELOW_MARGIN: "yellow",
    NOT_MEASURABLE: "gray",
    SLOWER: "red",
    INCONCLUSIVE: "blue",
}
#: What a label warns of, in one line each; the words are those of docs/reading-a-report.md.
LABEL_HELP = {
    "built-in model": "random weights and synthetic routing; not an engine's kernels",
    "cpu": "recorded on a CPU: launches are operators",
    "emulated ranks": "peers are buffers on one GPU, so link time is not NVLink's",
    "scaled shapes": "widths are smaller than the model's",
    "truncated layers": "fewer layers than the model has",
    "isolated bench": "a kernel alone in a loop",
    "modelled link": "link time is computed, not measured",
    "graph mode": "no kernels were recorded, only replay times",
    "eager": "no graph was replayed",
    "incomplete": "ranks are missing",
}


def title(text: str, lead: Any = None, actions: Sequence[Component] = ()) -> Component:
    """The head of a page."""
    head = html.Div([html.H1(text), html.Div(list(actions), className="fs-actions")], className="fs-title")
    return html.Header([head, html.Div(lead, className="fs-lead")] if lead is not None else [head])


def section(name: str, *children: Any, note: Any = None, actions: Sequence[Component] = ()) -> Component:
    """A named part of a page; its heading can be linked to."""
    anchor = "".join(c if c.isalnum() else "-" for c in name.lower())
    head = html.Div(
        [html.H2(name, id=f"h-{anchor}"), html.Div(list(actions), className="fs-actions")], className="fs-section-head"
    )
    body = [head, *([html.P(note, className="fs-note")] if note is not None else []), *children]
    return html.Section(body, id=anchor, className="fs-section", **{"aria-labelledby": f"h-{anchor}"})


def badges(labels: Iterable[str]) -> Component:
    """Labels that a number never loses."""
    made = [
        html.Span(label, className="fs-badge fs-badge-label", title=LABEL_HELP.get(label, "")) for label in labels
    ] or [html.Span("no labels", className="fs-badge", title="nothing limits what these numbers say")]
    return html.Span(made, className="fs-badges")


def verdict(found: Verdict, kind: str) -> Component:
    """A verdict with its sentence, and the one to quote."""
    quote = html.Div([html.Span(found.quote, className="fs-quote"), copy(found.quote)], className="fs-quoted")
    return dmc.Alert(
        [html.Div(found.sentence), *([quote] if found.quote else [])],
        title=f"{kind.capitalize()}: {found.class_.replace('_', ' ')}",
        color=VERDICT_COLOURS.get(found.class_, "blue"),
        variant="light",
        className="fs-verdict",
    )


def copy(text: str, what: str = "this sentence") -> Component:
    """A button that copies a text."""
    return html.Button(
        "Copy", type="button", className="fs-button", title=f"Copy {what}", **{"data-copy": text, "aria-live": "polite"}
    )


def alert(sentence: Any, heading: str = "", colour: str = "red") -> Component:
    """Something that a person must read first."""
    return dmc.Alert(sentence, title=heading or None, color=colour, variant="light", className="fs-alert")


def stats(rows: Iterable[tuple[str, str, str]]) -> Component:
    """Numbers in a row: (name, value with unit, what it is a part of or how it is known)."""
    return html.Dl(
        [
            html.Div([html.Dt(name), html.Dd(value), html.Dd(note, className="fs-stat-note")], className="fs-stat")
            for name, value, note in rows
        ],
        className="fs-stats",
    )


def facts(values: Mapping[str, Any], caption: str) -> Component:
    """Names and values."""
    rows = [html.Tr([html.Th(name, scope="row"), html.Td(value)]) for name, value in values.items()]
    return scrolling(
        html.Table([html.Caption(caption), html.Tbody(rows)], className="fs-table fs-facts"),
        caption,
    )


def table(rows: Sequence[Mapping[str, Any]], caption: str, text: Iterable[str] = ()) -> Component:
    """Rows under the names of their columns, which are numbers unless named in `text`; the first is the row's head."""
    if not rows:
        return html.P("Nothing to show.", className="fs-note")
    words = set(text)
    names = list(rows[0])

    def cell(place: int, name: str, value: Any) -> Component:
        kind = "" if name in words else "fs-number"
        value = shown(value)
        return html.Th(value, scope="row", className=kind) if place == 0 else html.Td(value, className=kind)

    head = html.Thead(html.Tr([html.Th(n, scope="col", className="" if n in words else "fs-number") for n in names]))
    body = html.Tbody([html.Tr([cell(k, n, row[n]) for k, n in enumerate(names)]) for row in rows])
    return scrolling(html.Table([html.Caption(caption), head, body], className="fs-table"), caption)


def shown(value: Any) -> Any:
    """A number as people read it: grouped thousands, two decimals; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def scrolling(inner: Component, name: str) -> Component:
    """A part that may be wider than the page: it scrolls by itself, also from the keyboard."""
    return html.Div(inner, className="fs-scroll", tabIndex=0, role="region", **{"aria-label": name})


def figure(ident: str | dict[str, str], made: Any, caption: str, file: str) -> Component:
    """A plot with its caption, and buttons that save it as PNG or SVG."""
    config = {
        "displaylogo": False,
        "responsive": True,
        "scrollZoom": False,
        "modeBarButtonsToRemove": ["lasso2d", "select2d", "autoScale2d", "toImage"],
    }
    buttons = [
        html.Button(
            kind.upper(),
            type="button",
            className="fs-button fs-save",
            title=f"Save this figure as {kind.upper()}",
            **{"data-format": kind, "data-file": file},
        )
        for kind in ("png", "svg")
    ]
    return html.Figure(
        [
            dcc.Graph(
                id=ident, figure=made, config=config, responsive=True, style={"height": f"{made.layout.height}px"}
            ),
            html.Figcaption([html.Span(caption), html.Span(buttons, className="fs-actions")]),
        ],
        className="fs-figure",
    )


def link(text: Any, href: str, button: bool = False) -> Component:
    """A link within the dashboard."""
    return dcc.Link(text, href=href, className="fs-button" if button else "fs-link")


def save(href: str, text: str = "CSV") -> Component:
    """A link to a file."""
    return html.A(text, href=href, className="fs-button", download="", title=f"Download as {text}")


def param(name: str, *, go: bool = False) -> dict[str, str]:
    """The id of a control whose value stands in the URL; `go` renders the whole page anew."""
    return {"type": "go" if go else "param", "name": name}
