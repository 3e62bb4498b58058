"""What happens when a control changes: in the browser alone where it can, else on the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dash import ALL, MATCH, ClientsideFunction, Dash, Input, Output, State, ctx, no_update
from dash.development.base_component import Component

from fusionscope.dashboard import urls
from fusionscope.dashboard.library import Library
from fusionscope.dashboard.pages import compare, estimate, run, runs

Render = Callable[[Library, str | None, str | None], tuple[Component, str]]
_RUNS = {"type": "grid", "name": "q"}
_SITE = {"type": "param", "name": "site"}


def add_browser(app: Dash) -> None:
    """Titles, the URL of what is shown, filters and steps: functions of assets/app.js."""

    def client(name: str, *parts: Input | Output | State, **more: bool) -> None:
        app.clientside_callback(ClientsideFunction(namespace="fusionscope", function_name=name), *parts, **more)

    every = [{"type": kind, "name": ALL} for kind in ("param", "search")]
    client("titled", Output("named", "data"), Input("titled", "data"))
    # Controls of a part of a page change the URL in place; the others go to the page that it then names.
    client("sync", Output("synced", "data"), *[Input(ident, "value") for ident in every])
    go = Input({"type": "go", "name": ALL}, "value")
    client("go", Output("url", "pathname"), Output("url", "search"), go, prevent_initial_call=True)
    options = ({"type": "grid", "name": MATCH}, "dashGridOptions")
    typed = Input({"type": "search", "name": MATCH}, "value")
    client("quickFilter", Output(*options), typed, State(*options), prevent_initial_call=True)
    clicks = Input({"type": "step", "by": ALL}, "n_clicks")
    sites = [State(_SITE, "data"), State(_SITE, "value")]
    client("step", Output(_SITE, "value"), clicks, *sites, prevent_initial_call=True)


def add_server(app: Dash, library: Library, render: Render) -> None:
    """Pages, and the parts of pages that a control asks for."""
    path, search = State("url", "pathname"), State("url", "search")

    def later(outputs: list[Output], inputs: list[Input], states: list[State], answer: Callable[..., Any]) -> None:
        app.callback(*outputs, *inputs, *states, prevent_initial_call=True)(answer)

    app.callback(
        Output("content", "children"),
        Output("titled", "data"),
        Input("url", "pathname"),
        Input("url", "search"),
    )(lambda path, search: render(library, path, search))
    later([Output("selected", "children")], [Input(_RUNS, "selectedRows")], [], runs.selected)
    later(
        [Output(_RUNS, "rowData"), Output("tag-answer", "children")],
        [Input("tag-add", "n_clicks"), Input("tag-remove", "n_clicks")],
        [State(_RUNS, "selectedRows"), State("tag-name", "value")],
        lambda add, take, chosen, name: _tagged(library, add, take, chosen, name),
    )
    later(
        [Output("plot-timeline", "figure")],
        [Input(_SITE, "value")],
        [path, search],
        lambda site, path, search: run.zoom(library, urls.parts(path)[1], urls.Query.parse(search), site),
    )
    later(
        [Output("plot-aligned", "figure")],
        [Input(_SITE, "value")],
        [search],
        lambda site, search: compare.aligned(library, urls.Query.parse(search), site),
    )
    later(
        [Output("estimate-result", "children"), Output("estimate-controls", "className")],
        [Input({"type": "param", "name": ALL}, "value")],
        [State({"type": "param", "name": ALL}, "id"), path, search],
        lambda values, ids, path, search: estimated(library, values, ids, path, search),
    )


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
