"""Long tables: sortable, filterable, searchable, and drawn only where they are seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_ag_grid as dag
from dash import dcc, html
from dash.development.base_component import Component


def column(name: str, rows: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """One column; numbers are aligned to the right. Names may hold dots, so values are looked up by the whole name."""
    made: dict[str, Any] = {"field": name, "headerName": name, "headerTooltip": name}
    values = [row[name] for row in rows if row[name] is not None]
    if values and all(isinstance(value, int | float) for value in values):
        decimals = 0 if all(isinstance(value, int) for value in values) else 2
        made |= {
            "type": "rightAligned",
            "filter": "agNumberColumnFilter",
            "valueFormatter": {"function": f"FS.number(params.value, {decimals})"},
        }
    else:
        made |= {"tooltipField": name}
    return made | more


def grid(
    name: str,
    columns: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    *,
    height: int,
    label: str,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> Component:
    """A table of rows. Names of fields are literal: a dot in one is no path."""
    made = dag.AgGrid(
        id={"type": "grid", "name": name},
        columnDefs=list(columns),
        rowData=list(rows),
        defaultColDef={"sortable": True, "resizable": True, "filter": True, "minWidth": 70},
        dashGridOptions={
            "suppressFieldDotNotation": True,
            "animateRows": False,
            "rowHeight": 34,
            "headerHeight": 38,
            "enableCellTextSelection": True,
            "ensureDomOrder": True,
            "tooltipShowDelay": 300,
            **(options or {}),
        },
        style={"height": f"{height}px", "width": "100%"},
        **more,
    )
    return html.Div(made, className="fs-grid", role="region", **{"aria-label": label})


def search(name: str, value: str, label: str) -> Component:
    """A box that filters the grid of the same name by any text in its rows; what is typed stands in the URL."""
    box = dcc.Input(
        id={"type": "search", "name": name},
        value=value,
        placeholder=label,
        type="search",
        className="fs-input",
    )
    return html.Label([html.Span(label, className="fs-hidden"), box], className="fs-search")
