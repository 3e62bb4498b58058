"""All runs: what they are, with their labels; two of them selected are a comparison."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from fusionscope.dashboard import grid, parts, tables, urls
from fusionscope.dashboard.library import Library

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
    lead = [f"{len(rows)} runs in ", html.Code(str(library.store.root)), "; the examples ship with FusionScope."]
    if broken:
        lead.append(html.Strong(f" {broken} cannot be opened: the Error column says why."))
    columns = [_column(name, rows, broken > 0) for name in rows[0] if name not in _HIDDEN]
    return html.Div(
        [
            parts.title("Runs", lead, [parts.save(urls.download("runs.csv"))]),
            html.Div(
                [
                    grid.search("q", query.text("q"), "Search runs, models, labels, paths"),
                    html.Div(_compare_link([]), id="compare-selected", **{"aria-live": "polite"}),
                ],
                className="fs-toolbar",
            ),
            grid.grid(
                "q",
                columns,
                rows,
                height=min(90 + 34 * len(rows), 640),
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
        more |= {"cellRenderer": "FsBadges", "autoHeight": False}
    if name == "Error":
        more |= {"hide": not broken, "cellClass": "fs-error"}
    return grid.column(name, rows, **more)


def selected(chosen: list[dict[str, str]] | None) -> Component | str:
    """What can be done with the selected rows."""
    return _compare_link([row["Id"] for row in chosen or [] if not row["Error"]])


def _compare_link(ids: list[str]) -> Component | str:
    if len(ids) < 2:
        return html.Span("Select two or more runs to compare: the first is the base.", className="fs-note")
    return parts.link(f"Compare {len(ids)} runs", urls.compare(ids[0], ids[1:]), button=True)
