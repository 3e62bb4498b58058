"""The Dash application: the frame of every page, which page a path names, and what controls change."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
import flask
from dash import ALL, MATCH, ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from fusionscope.dashboard import downloads, parts, urls
from fusionscope.dashboard.library import Library
from fusionscope.dashboard.pages import accuracy, compare, estimate, run, runs, summary
from fusionscope.profiler.errors import FusionScopeError

_INDEX = """<!DOCTYPE html>
<html lang="en">
  <head>
    {%metas%}
    <title>{%title%}</title>
    <link rel="icon" type="image/svg+xml" href="/assets/favicon.svg">
    {%css%}
  </head>
  <body>
    {%app_entry%}
    <footer>{%config%}{%scripts%}{%renderer%}</footer>
  </body>
</html>"""
_NAV = (("Runs", "/"), ("Compare", "/compare"), ("Estimate", "/estimate"), ("Accuracy", "/accuracy"),
        ("Summary", "/summary"))  # fmt: skip
_FONT = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def make_app(library: Library) -> Dash:
    """The dashboard over a library of runs, ready to be served."""
    here = str(Path(__file__).parent)
    # Flask looks for the folder of its own accord, and cannot find one in a namespace package.
    app = Dash(
        "fusionscope_dashboard",
        server=flask.Flask("fusionscope_dashboard", root_path=here, instance_path=here, static_folder=None),
        assets_folder=f"{here}/assets",
        title="FusionScope",
        update_title="",
        index_string=_INDEX,
        suppress_callback_exceptions=True,
        compress=False,
        add_log_handler=False,
    )
    app.layout = _frame()
    _callbacks(app, library)
    downloads.add_routes(app.server, library)
    return app


def _frame() -> Component:
    links = [
        dcc.Link(name, href=href, className="fs-nav-link", id={"type": "nav", "href": href}) for name, href in _NAV
    ]
    header = html.Header(
        [
            html.A("Skip to the content", href="#content", className="fs-skip"),
            dcc.Link(["Fusion", html.Span("Scope")], href="/", className="fs-brand"),
            html.Nav(links, className="fs-nav", **{"aria-label": "Pages"}),
            dmc.ColorSchemeToggle(
                lightIcon=html.Span("☀"),
                darkIcon=html.Span("☾"),
                variant="default",
                size="md",
                id="theme",
                **{"aria-label": "Switch between light and dark"},
            ),
        ],
        className="fs-header",
    )
    body = html.Div(
        [
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id="synced"),
            dcc.Store(id="titled"),
            dcc.Store(id="named"),
            header,
            html.Main(id="content", className="fs-main", tabIndex=-1),
        ]
    )
    return dmc.MantineProvider(
        body,
        defaultColorScheme="auto",
        theme={"fontFamily": _FONT, "primaryColor": "indigo", "defaultRadius": "md", "autoContrast": True},
    )


def render(library: Library, pathname: str | None, search: str | None) -> tuple[Component, str]:
    """The page that a path names and its title; what goes wrong is shown in its place."""
    page, ref = urls.parts(pathname)
    query = urls.Query.parse(search)
    pages: dict[str, Callable[[], Component]] = {
        "": lambda: runs.page(library, query),
        "run": lambda: run.page(library, ref, query),
        "compare": lambda: compare.page(library, query),
        "estimate": lambda: estimate.page(library, ref, query),
        "accuracy": lambda: accuracy.page(library, query),
        "summary": lambda: summary.page(library, query),
    }
    names = {"run": ref or "Run", "estimate": f"Estimate {ref}".strip(), "": "Runs"}
    title = f"{names.get(page, page.capitalize())} - FusionScope"
    if page not in pages or (page == "run" and not ref):
        return html.Div([parts.title("No such page"), parts.alert("Choose one above.")]), "No such page - FusionScope"
    try:
        return pages[page](), title
    except FusionScopeError as error:
        head = parts.title(ref or page.capitalize())
        return html.Div([head, parts.alert(str(error), "This page cannot be shown")]), title
    except Exception as error:
        # One run's fault must not take the others' pages along: it is said here and in the terminal.
        traceback.print_exc(file=sys.stderr)
        told = (
            f"{type(error).__name__}: {error}. Please report this with the run's trace; the terminal has the details."
        )
        return html.Div([parts.title(ref or page.capitalize()), parts.alert(told, "A fault of FusionScope")]), title


def _callbacks(app: Dash, library: Library) -> None:
    def client(name: str) -> ClientsideFunction:
        return ClientsideFunction(namespace="fusionscope", function_name=name)

    every = [{"type": kind, "name": ALL} for kind in ("param", "search")]
    url = [State("url", "pathname"), State("url", "search")]

    app.callback(Output("content", "children"), Output("titled", "data"), Input("url", "pathname"),
                 Input("url", "search"))(lambda path, search: render(library, path, search))  # fmt: skip
    app.clientside_callback(client("titled"), Output("named", "data"), Input("titled", "data"))
    # Controls of a part of a page change the URL in place; the others go to the page that it then names.
    app.clientside_callback(client("sync"), Output("synced", "data"), *[Input(i, "value") for i in every])
    app.clientside_callback(
        client("go"),
        Output("url", "pathname"),
        Output("url", "search"),
        Input({"type": "go", "name": ALL}, "value"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        client("quickFilter"),
        Output({"type": "grid", "name": MATCH}, "dashGridOptions"),
        Input({"type": "search", "name": MATCH}, "value"),
        State({"type": "grid", "name": MATCH}, "dashGridOptions"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        client("step"),
        Output({"type": "param", "name": "site"}, "value"),
        Input({"type": "step", "by": ALL}, "n_clicks"),
        State({"type": "param", "name": "site"}, "data"),
        State({"type": "param", "name": "site"}, "value"),
        prevent_initial_call=True,
    )
    app.callback(
        Output("selected", "children"),
        Input({"type": "grid", "name": "q"}, "selectedRows"),
        prevent_initial_call=True,
    )(runs.selected)
    app.callback(
        Output({"type": "grid", "name": "q"}, "rowData"),
        Output("tag-answer", "children"),
        Input("tag-add", "n_clicks"),
        Input("tag-remove", "n_clicks"),
        State({"type": "grid", "name": "q"}, "selectedRows"),
        State("tag-name", "value"),
        prevent_initial_call=True,
    )(lambda add, take, chosen, name: _tagged(library, add, take, chosen, name))
    app.callback(
        Output("plot-timeline", "figure"),
        Input({"type": "param", "name": "site"}, "value"),
        *url,
        prevent_initial_call=True,
    )(lambda site, path, search: run.zoom(library, urls.parts(path)[1], urls.Query.parse(search), site))
    app.callback(
        Output("plot-aligned", "figure"),
        Input({"type": "param", "name": "site"}, "value"),
        State("url", "search"),
        prevent_initial_call=True,
    )(lambda site, search: compare.aligned(library, urls.Query.parse(search), site))
    app.callback(
        Output("estimate-result", "children"),
        Output("estimate-controls", "className"),
        Input({"type": "param", "name": ALL}, "value"),
        State({"type": "param", "name": ALL}, "id"),
        *url,
        prevent_initial_call=True,
    )(lambda values, ids, path, search: estimated(library, values, ids, path, search))


def _tagged(library: Library, add: int | None, take: int | None, chosen: Any, name: str | None) -> tuple[Any, Any]:
    # The buttons' coming into being calls back as well.
    if not add and not take:
        return no_update, no_update
    return runs.tagged(library, chosen, name, ctx.triggered_id == "tag-remove")


def estimated(
    library: Library, values: list[Any], ids: list[dict[str, str]], path: str, search: str
) -> tuple[Any, str]:
    """The result of the estimate page and the class of its controls, from the controls' values and the URL."""
    controls = {ident["name"]: value for ident, value in zip(ids, values, strict=True)}
    query = urls.Query.parse(search).replaced(controls)
    return estimate.result(library, urls.parts(path)[1], query), f"fs-side fs-how-{query.text('how', 'speedup')}"
