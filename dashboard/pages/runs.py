"""All runs: what they are, with their labels; two of them selected are a comparison."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from fusionscope.dashboard import grid, parts, tables, urls
from fusionscope.dashboard.library import Library
from fusionscope.profiler.errors import FusionScopeError

TITLE = "Runs"
#: Least widths in px, and which columns take what is left over.
_WIDTHS = {"Run": 180, "Created (UTC)": 145, "Model": 120, "GPU": 130, "TP": 62, "Batch": 78, "Context (tokens)": 96,
           "Paths": 170, "Profiler": 100, "Labels": 245, "Tags": 90, "Error": 320}  # fmt: skip
_GROW = ("Paths",)
_HIDDEN = ("Id", "Name")


def page(library: Library, query: urls.Query) -> Component:
    """The page `/`; `q` is what is searched for."""
    rows = tables.runs(library.list())
    broken = sum(1 for row in rows if row["Error"])
    lead = [
        html.Span([f"{len(rows)} runs in ", html.Code(library.store.place), ". The examples ship with FusionScope."])
    ]
    if broken:
        lead.append(html.Strong(f"{broken} cannot be opened: the Error column says why."))
    columns = [_column(name, rows, broken > 0) for name in rows[0] if name not in _HIDDEN]
    return html.Div(
        [
            parts.title("Runs", lead, [parts.save(urls.download("runs.csv"))]),
            html.Div(
                [
                    grid.search("q", query.text("q"), "Search runs, models, labels, paths"),
                    html.Div(selected(None), id="selected", className="fs-actions", **{"aria-live": "polite"}),
                ],
                className="fs-toolbar",
            ),
            grid.grid(
                "q",
                columns,
                rows,
                height=min(58 + 38 * len(rows) + 60 * broken, 640),
                label="All runs",
                options={
                    "rowSelection": {"mode": "multiRow", "headerCheckbox": False},
                    "selectionColumnDef": {"pinned": "left", "width": 46, "headerTooltip": "Select runs to compare"},
                    "quickFilterText": query.text("q"),
                },
                getRowId="params.data.Id",
            ),
        ]
    )


def _column(name: str, rows: tables.Rows, broken: bool) -> dict[str, object]:
    more: dict[str, object] = {"minWidth": _WIDTHS[name], "width": _WIDTHS[name]}
    if name in _GROW:
        more["flex"] = 1
    if name in ("TP", "Batch", "Context (tokens)"):
        more |= {"headerName": name.partition(" ")[0], "suppressHeaderFilterButton": True}
    if name == "Run":
        more |= {"cellRenderer": "FsRun", "pinned": "left", "width": 200}
    if name in ("Labels", "Tags"):
        more |= {"cellRenderer": f"Fs{name}"}
    if name == "Error":
        more |= {"hide": not broken, "cellClass": "fs-error"}
    if name in ("Labels", "Tags", "Error"):
        # Nothing of these is ever cut off: the row grows.
        more |= {"autoHeight": True, "wrapText": True}
    return grid.column(name, rows, **more)


def selected(chosen: list[dict[str, str]] | None) -> list[Component]:
    """What can be done with the selected rows: compare them, give them a tag."""
    ids = [row["Id"] for row in chosen or [] if not row["Error"]]
    if not ids:
        return [html.Span("Select runs to compare (the first is the base) or to tag.", className="fs-note")]
    made: list[Component] = []
    if len(ids) > 1:
        made.append(parts.link(f"Compare {len(ids)} runs", urls.compare(ids[0], ids[1:]), button=True))
    box = dmc.TextInput(id="tag-name", placeholder="tag", size="xs", w=110, **{"aria-label": "Tag"})
    buttons = [
        html.Button(text, id=ident, type="button", className="fs-button")
        for text, ident in (("Add tag", "tag-add"), ("Remove tag", "tag-remove"))
    ]
    return [*made, box, *buttons, html.Span(id="tag-answer", className="fs-error", role="status")]


def tagged(
    library: Library, chosen: list[dict[str, str]] | None, name: str | None, remove: bool
) -> tuple[tables.Rows, str]:
    """The rows after a tag was given or taken, and what went wrong."""
    said = ""
    try:
        library.tag([row["Id"] for row in chosen or [] if not row["Error"]], name or "", remove)
    except FusionScopeError as error:
        said = str(error)
    return tables.runs(library.list()), said
