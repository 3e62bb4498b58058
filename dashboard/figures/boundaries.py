"""Boundaries of one forward as bars: each kernel's launches x median and sum, each boundary's share of the span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from fusionscope.analysis.names import short
from fusionscope.dashboard.figures.base import BASE, CANDIDATE, colours, figure, plain, tint


def bars(boundaries: Sequence[Mapping[str, Any]]) -> go.Figure:
    """One bar a kind that has sites (rows of `analysis.tables.report`), made of its kernels."""
    shown = [row for row in boundaries if row["sites"]]
    made = figure(
        110 + 44 * max(len(shown), 1),
        barmode="stack",
        showlegend=False,
        bargap=0.35,
        xaxis_title="kernel time of one forward (us)",
        yaxis={"autorange": "reversed", "automargin": True, "showgrid": False},
    )
    palette = colours(row["boundary"] for row in boundaries)
    for row in shown:
        kind = plain(row["boundary"])
        for place, kernel in enumerate(row["kernels"]):
            name = plain(short(str(kernel["name"])))
            made.add_bar(
                orientation="h",
                y=[kind],
                x=[kernel["kernel_time_ns"] / 1000],
                marker={"color": tint(palette[row["boundary"]], place), "line": {"color": "#ffffff", "width": 1}},
                text=f"{name}<br>{kernel['launches']} × {kernel['median_ns'] / 1000:.2f} us",
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                hovertemplate=(
                    f"<b>{kind}</b><br>{name}<br>{kernel['launches']} launches × median "
                    f"{kernel['median_ns'] / 1000:.2f} us<br>"
                    f"sum {kernel['kernel_time_ns'] / 1000:.1f} us<extra></extra>"
                ),
            )
    made.update_traces(textfont={"size": 11, "color": "#15181e"})
    made.update_layout(uniformtext={"mode": "hide", "minsize": 10})
    for row in shown:
        made.add_annotation(
            y=plain(row["boundary"]),
            x=row["kernel_time_ns"] / 1000,
            text=f"  {row['kernel_time_ns'] / 1000:,.1f} us, {row['share']:.2%} of the span",
            showarrow=False,
            xanchor="left",
            font={"size": 12},
        )
    most = max((row["kernel_time_ns"] / 1000 for row in shown), default=1.0)
    made.update_xaxes(range=[0, most * 1.35], rangemode="tozero")
    return made


def pairs(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Kernel time of each boundary before and after: rows with `name`, `base_us`, `candidate_us`."""
    made = figure(
        120 + 56 * max(len(rows), 1),
        barmode="group",
        bargap=0.3,
        xaxis_title="kernel time of one forward (us)",
        yaxis={"autorange": "reversed", "automargin": True, "showgrid": False},
        legend={"traceorder": "normal", "orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
    )
    for name, key, colour in (("base", "base_us", BASE), ("candidate", "candidate_us", CANDIDATE)):
        made.add_bar(
            orientation="h",
            name=name,
            y=[plain(str(row["name"])) for row in rows],
            x=[row[key] for row in rows],
            text=[f"{row[key]:,.1f} us" for row in rows],
            textposition="outside",
            cliponaxis=False,
            marker={"color": colour},
            hovertemplate="%{y}, " + name + "<br>%{x:,.1f} us<extra></extra>",
        )
    most = max((float(row[key]) for row in rows for key in ("base_us", "candidate_us")), default=1.0)
    made.update_xaxes(range=[0, most * 1.15])
    return made


def coverage(shares: Mapping[str, float], words: Mapping[str, str]) -> go.Figure:
    """One bar: how each part of the kernel time is known."""
    tones = {"1": "#3ca951", "2": "#4269d0", "3": "#a463f2", "4": "#e08b00", "role": "#b4bac4", "none": "#e5484d"}
    made = figure(120, barmode="stack", bargap=0.4, xaxis={"ticksuffix": " %", "range": [0, 100]}, showlegend=True)
    for key, share in shares.items():
        if share > 0:
            made.add_bar(
                orientation="h",
                y=[""],
                x=[share * 100],
                name=f"{words[key]} {share:.1%}",
                marker={"color": tones[key]},
                hovertemplate=f"{words[key]}: {share:.2%} of kernel time<extra></extra>",
            )
    return made
