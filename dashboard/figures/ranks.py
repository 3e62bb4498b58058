"""Ranks beside each other: what of their all-reduces is transfer, and what is waiting for the others."""

from __future__ import annotations

import plotly.graph_objects as go

from fusionscope.analysis.ranks import Ranks
from fusionscope.dashboard.figures.base import BAD, CANDIDATE, figure


def waiting(found: Ranks) -> go.Figure:
    """One bar a rank, us over all replays; no bars where the ranks do not fit together."""
    names = [f"rank {row.rank}" for row in found.rows]
    made = figure(
        110 + 36 * len(names),
        barmode="stack",
        bargap=0.35,
        xaxis_title="all-reduce time over all replays (us)",
        yaxis={"autorange": "reversed", "automargin": True, "showgrid": False},
    )
    parts = (
        ("transfer", CANDIDATE, [row.transfer_ns for row in found.rows]),
        ("wait for other ranks", BAD, [row.wait_ns for row in found.rows]),
    )
    for name, colour, values in parts:
        if None not in values:
            made.add_bar(
                orientation="h",
                name=name,
                y=names,
                x=[(value or 0) / 1000 for value in values],
                marker={"color": colour},
                hovertemplate="%{y}: %{x:,.1f} us<extra>" + name + "</extra>",
            )
    return made
