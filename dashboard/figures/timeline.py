"""One execution by stream: a bar a launch, one trace a boundary, so that thousands of launches stay smooth."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from fusionscope.analysis.names import short
from fusionscope.analysis.sites import Site
from fusionscope.analysis.timeline import Timeline
from fusionscope.dashboard.figures.base import OUTSIDE, colours, figure, plain

#: Part of a site's own length that is shown on each side of it, and the least of it in us.
_AROUND, _LEAST = 1.5, 20.0
ELSEWHERE = "outside boundaries"


def timeline(shown: Timeline, site: Site | None = None) -> go.Figure:
    """One execution; with a site the view is zoomed to it."""
    lanes = list(dict.fromkeys(shown.lanes))
    made = _empty(len(lanes), "time since the first launch of this replay (us)")
    _add(made, shown, "", 0.0, set())
    made.update_yaxes(categoryorder="array", categoryarray=lanes[::-1])
    if site is not None:
        made.update_xaxes(range=window(shown, site))
    return made


def aligned(base: Timeline, candidate: Timeline, sites: tuple[Site, Site] | None = None) -> go.Figure:
    """Two executions over each other, from their first launches; with a pair of sites, so that these start together."""
    shift, x_title = 0.0, "time since the first launch (us)"
    if sites is not None:
        shift = (base.window(sites[0])[0] - candidate.window(sites[1])[0]) / 1000
        x_title = f"time since the base's first launch (us); the candidate is moved by {shift:+,.1f} us"
    sides = (("base", base, 0.0), ("candidate", candidate, shift))
    lanes = [f"{name}, {lane}" for name, side, _ in sides for lane in dict.fromkeys(side.lanes)]
    made = _empty(len(lanes), x_title)
    seen: set[str] = set()
    for name, side, moved in sides:
        _add(made, side, f"{name}, ", moved, seen)
    made.update_yaxes(categoryorder="array", categoryarray=lanes[::-1])
    if sites is not None:
        made.update_xaxes(range=window(base, sites[0]))
    return made


def window(shown: Timeline, site: Site) -> list[float]:
    """The part of the time axis (us) that shows a site with its neighbours."""
    start, end = (edge / 1000 for edge in shown.window(site))
    around = max((end - start) * _AROUND, _LEAST)
    return [start - around, end + around]


def site_name(site: Site) -> str:
    """`mhc_post 12 (ffn_exit, layer 6)`."""
    more = ", ".join([*([site.subtype] if site.subtype else []), *([f"layer {site.layer}"] if site.layer >= 0 else [])])
    return f"{site.boundary} {site.site}" + (f" ({more})" if more else "")


def _empty(lanes: int, x_title: str) -> go.Figure:
    return figure(
        130 + 56 * lanes,
        barmode="overlay",
        bargap=0.25,
        hovermode="closest",
        dragmode="zoom",
        xaxis={"title": x_title, "gridcolor": "#e4e7ec", "automargin": True, "zeroline": False},
        yaxis={"automargin": True, "fixedrange": True, "gridcolor": "#ffffff", "ticks": ""},
    )


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
