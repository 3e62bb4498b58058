"""Amdahl's curve with the estimate on it, and predicted against measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from fusionscope.analysis import amdahl
from fusionscope.analysis.estimate import Estimate
from fusionscope.analysis.predictions import Prediction
from fusionscope.dashboard.figures.base import BAD, CANDIDATE, GOOD, NEUTRAL, figure, plain


def amdahl_curve(made: Estimate, margin: float) -> go.Figure:
    """Saving in percent of the step over the boundary's speed-up; the point is Amdahl's, the bar the schedule's."""
    most = max(4.0, 1.5 * made.speedup if np.isfinite(made.speedup) else 10.0)
    speedups = np.linspace(1.0, most, 200)
    step = made.span_ns
    shown = figure(
        400,
        xaxis_title="speed-up of the boundary (x)",
        yaxis={"title": "saving (% of the step)", "automargin": True, "gridcolor": "#e4e7ec", "ticksuffix": " %"},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
    )
    shown.add_scatter(
        x=speedups,
        y=[100 * amdahl.gain(made.share, s) for s in speedups],
        mode="lines",
        name=f"Amdahl, {made.share:.2%} of the span",
        line={"color": NEUTRAL, "width": 2},
        hovertemplate="%{x:.2f} x: %{y:.2f} % of the step<extra>Amdahl</extra>",
    )
    at = min(made.speedup, most)
    shown.add_scatter(
        x=[at],
        y=[100 * made.amdahl_gain],
        mode="markers",
        name=f"Amdahl at {made.speedup:.2f} x",
        marker={"color": NEUTRAL, "size": 11, "symbol": "diamond", "line": {"color": "#ffffff", "width": 1}},
        hovertemplate="%{x:.2f} x: %{y:.2f} % of the step<extra>Amdahl</extra>",
    )
    low, high = (100 * edge / step for edge in made.interval_ns)
    saving = 100 * made.saving_ns / step
    shown.add_scatter(
        x=[at],
        y=[saving],
        mode="markers",
        name="schedule estimate, 95 % interval",
        marker={"color": CANDIDATE, "size": 11},
        error_y={"type": "data", "symmetric": False, "array": [high - saving], "arrayminus": [saving - low],
                 "color": CANDIDATE, "thickness": 2, "width": 7},
        hovertemplate="%{y:.2f} % of the step<extra>schedule</extra>",
    )  # fmt: skip
    lines = [("ceiling", 100 * made.ceiling_ns / step, GOOD), ("margin", 100 * margin, BAD)]
    if made.mde_ns is not None:
        lines.append(("noise floor", 100 * made.mde_ns / step, NEUTRAL))
    for name, level, colour in lines:
        shown.add_scatter(
            x=[1, most],
            y=[level, level],
            mode="lines",
            name=f"{name} {level:.2f} %",
            line={"color": colour, "width": 1.5, "dash": "dash" if name != "noise floor" else "dot"},
            hovertemplate=f"{name}: {level:.2f} % of the step<extra></extra>",
        )
    return shown


def accuracy(found: Sequence[Prediction]) -> go.Figure:
    """Measured over predicted saving in us, with both intervals and the line on which they agree."""
    shown = figure(
        460,
        xaxis_title="predicted saving of one step (us)",
        yaxis={"title": "measured saving of one step (us)", "automargin": True, "gridcolor": "#e4e7ec"},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        hovermode="closest",
    )
    edges = [
        edge / 1000
        for p in found
        for edge in (*p.predicted.interval_ns, *p.measured_interval_ns, p.measured_ns, p.predicted.saving_ns)
    ]
    low, high = (min([*edges, 0.0]), max(edges)) if edges else (0.0, 1.0)
    room = 0.06 * ((high - low) or 1.0)
    ends = [low - room, high + room]
    shown.add_scatter(
        x=ends, y=ends, mode="lines", name="predicted = measured", hoverinfo="skip",
        line={"color": NEUTRAL, "width": 1.5, "dash": "dash"},
    )  # fmt: skip
    for held, name, colour in ((True, "in the predicted interval", GOOD), (False, "outside of it", BAD)):
        mine = [p for p in found if p.held is held]
        if not mine:
            continue
        x = np.array([p.predicted.saving_ns for p in mine]) / 1000
        y = np.array([p.measured_ns for p in mine]) / 1000
        across = np.array([p.predicted.interval_ns for p in mine]) / 1000
        up = np.array([p.measured_interval_ns for p in mine]) / 1000
        shown.add_scatter(
            x=x,
            y=y,
            mode="markers",
            name=name,
            marker={"color": colour, "size": 10},
            error_x={"type": "data", "symmetric": False, "array": across[:, 1] - x, "arrayminus": x - across[:, 0],
                     "color": colour, "thickness": 1.5},
            error_y={"type": "data", "symmetric": False, "array": up[:, 1] - y, "arrayminus": y - up[:, 0],
                     "color": colour, "thickness": 1.5},
            customdata=[[plain(f"{p.base.name or p.base.id} -> {p.candidate.name or p.candidate.id}"), p.boundary]
                        for p in mine],
            hovertemplate="<b>%{customdata[1]}</b><br>%{customdata[0]}<br>predicted %{x:.1f} us, measured %{y:.1f} us"
            "<extra></extra>",
        )  # fmt: skip
    shown.update_xaxes(range=ends)
    shown.update_yaxes(range=ends)
    return shown
