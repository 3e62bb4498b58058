"""The Dash application: the frame of every page, and which page a path names."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import dash_mantine_components as dmc
import flask
from dash import Dash, dcc, html
from dash.development.base_component import Component

from fusionscope.dashboard import callbacks, downloads, parts, urls
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
        hooks={"request_pre": "() => window.fusionscopeAsks()"},
        add_log_handler=False,
    )
    app.layout = _frame()
    callbacks.add_browser(app)
    callbacks.add_server(app, library, render)
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
