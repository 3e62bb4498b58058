"""Controls whose values stand in the URL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.sites import Site
from fusionscope.dashboard import parts
from fusionscope.dashboard.figures.timeline import site_name
from fusionscope.dashboard.library import Library
from fusionscope.profiler.runinfo import RunInfo


def select(
    name: str,
    label: str,
    options: Sequence[tuple[str, str]],
    value: str | None,
    *,
    go: bool = False,
    wide: bool = False,
    clearable: bool = False,
    placeholder: str = "",
) -> Component:
    """One of several (value, text); `go` renders the page anew when it changes."""
    return dmc.Select(
        id=parts.param(name, go=go),
        label=label,
        data=[{"value": key, "label": text} for key, text in options],
        value=value,
        searchable=len(options) > 8,
        allowDeselect=clearable,
        clearable=clearable,
        placeholder=placeholder,
        nothingFoundMessage="Nothing fits",
        comboboxProps={"withinPortal": True},
        clearButtonProps={"aria-label": f"Clear {label.lower()}"},
        limit=200,
        w=380 if wide else 220,
    )


def several(name: str, label: str, options: Sequence[tuple[str, str]], values: Sequence[str]) -> Component:
    """Some of several (value, text)."""
    return dmc.MultiSelect(
        id=parts.param(name, go=True),
        label=label,
        data=[{"value": key, "label": text} for key, text in options],
        value=list(values),
        searchable=True,
        clearable=True,
        clearButtonProps={"aria-label": f"Clear {label.lower()}"},
        nothingFoundMessage="Nothing fits",
        limit=200,
        w=420,
    )


def number(
    name: str, label: str, value: float | None, *, low: float, high: float, step: float, go: bool = False
) -> Component:
    """A number; the label says its unit."""
    return dmc.NumberInput(
        id=parts.param(name, go=go),
        label=label,
        value=value,
        min=low,
        max=high,
        step=step,
        debounce=400,
        allowNegative=False,
        clampBehavior="blur",
        w=180,
    )


def sites(run: Analysed, chosen: Site | None) -> Component:
    """The list of sites to zoom to."""
    found = [s for kind in run.attribution.sites.values() for s in kind]
    options = [(site_key(s), site_name(s)) for s in found]
    return stepping("Zoom to a site", options, site_key(chosen) if chosen else None, "the whole forward")


def stepping(label: str, options: Sequence[tuple[str, str]], value: str | None, nothing: str) -> Component:
    """A list of sites, with buttons for the one before and the one after."""
    picker = select("site", label, options, value, wide=True, clearable=True, placeholder=nothing)
    buttons = [
        html.Button(
            text,
            id={"type": "step", "by": by},
            type="button",
            className="fs-button",
            title=title,
            **{"aria-label": title},
        )
        for text, title, by in (("‹", "The site before", -1), ("›", "The next site", 1))
    ]
    return html.Div([picker, *buttons], className="fs-controls")


def runs(library: Library) -> list[tuple[str, str]]:
    """Every readable run, to choose from: by its name where no other has it."""
    infos = library.infos()
    names = Counter(info.name for info in infos)
    return [(info.id, _named(info, names[info.name])) for info in infos]


def _named(info: RunInfo, many: int) -> str:
    if info.name in ("", info.id):
        return info.id
    return info.name if many == 1 else f"{info.name} ({info.id})"


def site_key(site: Site) -> str:
    """A site as it stands in a URL: `mhc_post:12`."""
    return f"{site.boundary}:{site.site}"


def site_of(run: Analysed, key: str | None) -> Site | None:
    """The site that a URL names, None where this forward has none such."""
    kind, _, place = (key or "").rpartition(":")
    return next((s for s in run.attribution.sites.get(kind, []) if str(s.site) == place), None)
