"""All runs: what they are, with their labels; two of them selected are a comparison."""

from __future__ import annotations

from dash import html
from dash.development.base_component import Component

from fusionscope.dashboard import grid, parts, tables, urls
from fusionscope.dashboard.library import Library

TITLE = "Runs"
_WIDTHS = {"Run": 190, "Model": 130, "GPU": 130, "TP": 60, "Batch": 75, "Context (tokens)": 95, "Labels": 230}
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
                    "quickFilterText": query.text("q"),
                },
                getRowId="params.data.Id",
            ),
        ]
    )


def _column(name: str, rows: tables.Rows, broken: bool) -> dict[str, object]:
    more: dict[str, object] = {}
    if name in _WIDTHS:
        more["width"] = _WIDTHS[name]
    if name == "Run":
        more |= {"cellRenderer": "FsRun", "pinned": "left", "width": 210}
    if name in ("Labels", "Tags"):
        more |= {"cellRenderer": "FsBadges", "autoHeight": False}
    if name == "Error":
        more |= {"hide": not broken, "cellClass": "fs-error", "width": 260}
    return grid.column(name, rows, **more)


def selected(chosen: list[dict[str, str]] | None) -> Component | str:
    """What can be done with the selected rows."""
    return _compare_link([row["Id"] for row in chosen or [] if not row["Error"]])


def _compare_link(ids: list[str]) -> Component | str:
    if len(ids) < 2:
        return html.Span("Select two or more runs to compare: the first is the base.", className="fs-note")
    return parts.link(f"Compare {len(ids)} runs", urls.compare(ids[0], ids[1:]), button=True)
