"""What all figures share: colours, fonts, escaping. The page's style sheet recolours them in dark mode."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

import plotly.graph_objects as go

#: Shipped kinds keep their colour on every page; a user's kinds take the others in turn.
KINDS = {
    "ar_norm": "#6b8ff0",
    "moe_finalize": "#e08b00",
    "mhc_post": "#3ca951",
    "mhc_post_pre": "#1f7a4d",
    "add_norm": "#b483f5",
}
_OTHERS = ("#ff5a6e", "#0097a7", "#b7578c", "#8a6d3b", "#5b7083")
OUTSIDE = "#b4bac4"
BASE, CANDIDATE = "#8a93a3", "#4269d0"
GOOD, BAD, NEUTRAL = "#3ca951", "#e5484d", "#8a93a3"
FONT = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def colours(kinds: Iterable[str]) -> dict[str, str]:
    """A colour for every kind of boundary."""
    others = [kind for kind in kinds if kind not in KINDS]
    return KINDS | {kind: _OTHERS[k % len(_OTHERS)] for k, kind in enumerate(others)}


def plain(text: str) -> str:
    """A text of a trace as data: plotly reads tags in texts, so none may be left."""
    return html.escape(text, quote=False)


def tint(colour: str, step: int) -> str:
    """A colour of `#rrggbb` lighter by steps, still opaque: what stands behind a bar must not change its text."""
    part = min(0.24 * step, 0.72)
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(value + (255 - value) * part):02x}" for value in parts)


def figure(height: int, **layout: Any) -> go.Figure:
    """An empty figure in the house style (colours of the light page, which are those of a saved file)."""
    made = go.Figure()
    axis = {"gridcolor": "#e4e7ec", "zerolinecolor": "#aab1bd", "linecolor": "#aab1bd", "automargin": True}
    # A time axis in us says 20,000 and not 20k, which would be read as ms.
    axis |= {"exponentformat": "none", "separatethousands": True}
    base: dict[str, Any] = {
        "height": height,
        "margin": {"l": 8, "r": 16, "t": 12, "b": 8},
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "font": {"family": FONT, "size": 13, "color": "#2b303b"},
        "xaxis": axis,
        "yaxis": axis,
        "hoverlabel": {"align": "left", "font": {"family": FONT, "size": 12}},
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0, "itemsizing": "constant"},
        "template": "none",
    }
    made.update_layout(**base)
    made.update_layout(**layout)
    made.update_xaxes(title_font={"size": 13})
    made.update_yaxes(title_font={"size": 13})
    return made
