"""One execution by stream: a bar a launch, one trace a boundary, so that thousands of launches stay smooth."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from fusionscope.analysis.names import short
from fusionscope.analysis.sites import Site
from fusionscope.analysis.timeline import Timeline
from fusionscope.dashboard.figures.base import OUTSIDE, colours, figure, plain

#: Part of a site's own length that is shown on each side of it, and the least of it in us.
_AROUND, _LEAST = 1.0, 10.0
#: Widths of the plot at 1280 px, and of a letter, for the names that stand in bars.
_WIDTH_PX, _LETTER_PX = 1100, 7.2
ELSEWHERE = "outside boundaries"


def timeline(shown: Timeline, site: Site | None = None) -> go.Figure:
    """One execution; with a site the view is zoomed to it."""
    lanes = list(dict.fromkeys(shown.lanes))
    made = _empty(lanes, "time since the first launch of this replay (us)")
    _add(made, shown, "", 0.0, set())
    if site is not None:
        made.update_layout(annotations=names_in(shown, site), xaxis_range=window(shown, site))
    return made


def aligned(base: Timeline, candidate: Timeline, sites: tuple[Site, Site] | None = None) -> go.Figure:
    """Two executions over each other, from their first launches; with a pair of sites, so that these start together."""
    shift, x_title = 0.0, "time since the first launch (us)"
    if sites is not None:
        shift = (base.window(sites[0])[0] - candidate.window(sites[1])[0]) / 1000
        x_title = f"time since the base's first launch (us); the candidate is moved by {shift:+,.1f} us"
    sides = (("base", base, 0.0), ("candidate", candidate, shift))
    lanes = [f"{name}, {lane}" for name, side, _ in sides for lane in dict.fromkeys(side.lanes)]
    made = _empty(lanes, x_title)
    seen: set[str] = set()
    for name, side, moved in sides:
        _add(made, side, f"{name}, ", moved, seen)
    if sites is not None:
        seen_part = window(base, sites[0])
        notes = [note for k, (name, side, moved) in enumerate(sides)
                 for note in names_in(side, sites[k], seen_part, f"{name}, ", moved)]  # fmt: skip
        made.update_layout(annotations=notes, xaxis_range=seen_part)
    return made


def window(shown: Timeline, site: Site) -> list[float]:
    """The part of the time axis (us) that shows a site with its neighbours."""
    start, end = (edge / 1000 for edge in shown.window(site))
    around = max((end - start) * _AROUND, _LEAST)
    return [start - around, end + around]


def names_in(
    shown: Timeline, site: Site, part: list[float] | None = None, prefix: str = "", moved: float = 0.0
) -> list[dict[str, Any]]:
    """The names of the launches around a site, each cut to the width of its bar."""
    low, high = part or window(shown, site)
    start = shown.start / 1000 + moved
    end = start + shown.duration / 1000
    names, notes = shown.names, []
    for column in np.flatnonzero((end > low) & (start < high)).tolist():
        left, right = max(start[column], low), min(end[column], high)
        room = int((right - left) / (high - low) * _WIDTH_PX / _LETTER_PX)
        name = short(names[column])
        text = name if len(name) <= room else name[: room - 1] + "…"
        if room >= 4:
            notes.append(
                {"x": (left + right) / 2, "y": prefix + shown.lanes[column], "text": plain(text), "showarrow": False,
                 "font": {"size": 11, "color": "#15181e"}, "captureevents": False}
            )  # fmt: skip
    return notes


def site_name(site: Site) -> str:
    """`mhc_post 12 (ffn_exit, layer 6)`."""
    more = ", ".join([*([site.subtype] if site.subtype else []), *([f"layer {site.layer}"] if site.layer >= 0 else [])])
    return f"{site.boundary} {site.site}" + (f" ({more})" if more else "")


def _empty(lanes: list[str], x_title: str) -> go.Figure:
    made = figure(
        130 + 56 * len(lanes),
        barmode="overlay",
        bargap=0.25,
        hovermode="closest",
        dragmode="zoom",
        # Margins that plotly finds out by itself cost it a second drawing of every bar.
        margin={"l": 24 + _LETTER_PX * max(map(len, lanes)), "r": 16, "t": 40, "b": 44, "autoexpand": False},
        xaxis={"title": x_title, "automargin": False, "zeroline": False},
        yaxis={"automargin": False, "fixedrange": True, "showgrid": False, "ticks": ""},
    )
    made.update_yaxes(categoryorder="array", categoryarray=lanes[::-1])
    return made


def _add(made: go.Figure, shown: Timeline, prefix: str, moved: float, seen: set[str]) -> None:
    names = shown.names
    shorts = {name: plain(short(name)) for name in set(names)}
    palette = colours(shown.attribution.sites)
    kinds = np.array(shown.boundaries, dtype=object)
    start, duration = shown.start / 1000 + moved, shown.duration / 1000
    # What lies in a boundary is drawn last, over the rest.
    for kind in sorted(set(shown.boundaries)):
        places = np.flatnonzero(kinds == kind)
        title = kind or ELSEWHERE
        made.add_bar(
            orientation="h",
            textposition="none",
            name=plain(title),
            legendgroup=title,
            showlegend=title not in seen,
            base=start[places],
            x=duration[places],
            y=np.array([prefix + shown.lanes[place] for place in places], dtype=object),
            marker={"color": palette.get(kind, OUTSIDE), "line": {"width": 0}},
            hovertext=_told(shown, places, names, shorts),
            hovertemplate="%{hovertext}<extra></extra>",
        )
        seen.add(title)


def _told(shown: Timeline, places: NDArray[np.int64], names: list[str], shorts: dict[str, str]) -> NDArray[np.object_]:
    """[places] what a launch says when it is pointed at. An array, since plotly looks at each part of a list."""
    told = np.empty(len(places), dtype=object)
    for row, place in enumerate(places.tolist()):
        held = "<br>".join(plain(site_name(site)) for site in shown.sites[place]) or ELSEWHERE
        time = f"{shown.duration[place] / 1000:.2f} us, from {shown.start[place] / 1000:,.2f} us"
        told[row] = f"<b>{shorts[names[place]]}</b><br>{time}<br>{held}"
    return told
