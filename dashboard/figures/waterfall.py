"""Where the difference between two spans comes from."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from fusionscope.analysis.waterfall import Step
from fusionscope.dashboard.figures.base import BAD, CANDIDATE, GOOD, figure, plain


def waterfall(steps: Sequence[Step]) -> go.Figure:
    """Steps in us, candidate minus base; the last bar is their sum."""
    total = sum(s.difference_ns for s in steps) / 1000
    values = [s.difference_ns / 1000 for s in steps]
    names = [plain(s.name) + (f" ({s.launches:+d} launches)" if s.launches else "") for s in steps]
    made = figure(
        90 + 38 * (len(steps) + 1),
        showlegend=False,
        xaxis_title="difference of the span, candidate minus base (us)",
        yaxis={"autorange": "reversed", "automargin": True, "showgrid": False},
    )
    made.add_waterfall(
        orientation="h",
        measure=["relative"] * len(steps) + ["total"],
        y=[*names, "<b>difference of the spans</b>"],
        x=[*values, total],
        text=[f"{value:+,.1f} us" for value in [*values, total]],
        textposition="outside",
        cliponaxis=False,
        decreasing={"marker": {"color": GOOD}},
        increasing={"marker": {"color": BAD}},
        totals={"marker": {"color": CANDIDATE}},
        connector={"line": {"color": "#aab1bd", "width": 1}},
        hovertemplate="%{y}<br>%{text}<extra></extra>",
    )
    reached = [0.0]
    for value in values:
        reached.append(reached[-1] + value)
    width = (max(reached) - min(reached)) or 1.0
    made.update_xaxes(range=[min(reached) - 0.22 * width, max(reached) + 0.22 * width], zeroline=True)
    return made
