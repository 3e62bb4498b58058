"""Rung 4: boundaries as sequences of roles among neighbours on a stream.

A form is matched from its end backwards: for every element and every launch of a stream the furthest end that the rest
of the sequence can reach, once. So the time is launches times elements, whatever is optional or repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusionscope.analysis.forwards import Forward
from fusionscope.analysis.ruleset import ALL, TAKEN, BoundaryRule, Element, Form, Rules
from fusionscope.analysis.sites import Site

#: "No end": smaller than any launch's place.
NONE = -1
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Kernels:
    """The launches of a forward by what rules look at: distinct (role, names), and which one each launch is."""

    roles: list[str]
    names: list[tuple[str, str]]
    #: [n] place of each launch's kernel in the lists.
    codes: Ints
    #: Columns of each stream, in order of start.
    streams: list[Ints]

    def fits(self, element: Element) -> Bools:
        """[distinct] whether each distinct kernel fills the place."""
        return np.array([element.matches(r, n) for r, n in zip(self.roles, self.names, strict=True)], dtype=bool)


def kernels_of(forward: Forward, roles: Sequence[str], names: Sequence[str], raws: Sequence[str]) -> Kernels:
    """The launches of a forward, told apart by role and names."""
    place: dict[tuple[str, str, str], int] = {}
    codes = [place.setdefault(key, len(place)) for key in zip(roles, names, raws, strict=True)]
    return Kernels(
        [role for role, _, _ in place],
        [(name, raw) for _, name, raw in place],
        np.array(codes, dtype=np.int64),
        _streams(forward),
    )


def match_sites(
    forward: Forward, roles: list[str], names: list[str], raws: list[str], rules: Rules
) -> dict[str, list[Site]]:
    """The sites of every kind in the rules, in order of start; every kind has an entry."""
    kernels = kernels_of(forward, roles, names, raws)
    found: dict[str, list[Site]] = {}
    for rule in rules.boundaries:
        inside = {kind: {c for s in sites for c in s.columns} for kind, sites in found.items()}
        both = [pair for stream in kernels.streams for pair in sites_on(stream, rule, kernels)]
        sites = [s for s, form in both if not any(s.columns[0] in inside.get(k, ()) for k in form.unless_in)]
        sites.sort(key=lambda s: s.columns[0])
        found[rule.name] = [
            Site(s.boundary, s.subtype, s.layer, s.columns, 4, form=s.form, site=k) for k, s in enumerate(sites)
        ]
    return found


def _streams(forward: Forward) -> list[Ints]:
    # Neighbours by start of the last execution: the first may hold a warm-up's irregularities.
    order = np.lexsort((np.arange(forward.launches), forward.start[-1]))
    keys = list(zip(forward.nodes["device"], forward.nodes["stream"], strict=True))
    by_stream: dict[tuple[int, int], list[int]] = {}
    for column in order:
        by_stream.setdefault(keys[column], []).append(int(column))
    return [np.array(columns, dtype=np.int64) for columns in by_stream.values()]


def sites_on(stream: Ints, rule: BoundaryRule, kernels: Kernels) -> Iterator[tuple[Site, Form]]:
    """The sites of one kind on one stream: from the left, and of the forms that match at a launch the longest."""
    codes = kernels.codes[stream]
    matched = [Matched(form, [kernels.fits(e)[codes] for e in form.sequence]) for form in rule.forms]
    by_last = _subtypes_by_last(rule, codes, kernels) if rule.subtype_by_last else [""] * len(codes)
    longest = np.maximum.reduce([m.ends[0] for m in matched])
    at = 0
    for start in np.flatnonzero(longest[:-1] > np.arange(len(codes))).tolist():
        if start < at:
            continue
        best = next(m for m in matched if m.ends[0][start] == longest[start])
        taken = stream[best.taken(start)]
        subtype = best.form.subtype or by_last[start]
        at = int(longest[start])
        if rule.subtypes and subtype not in rule.subtypes:
            continue
        yield Site(rule.name, subtype, -1, tuple(int(c) for c in taken), 4, form=best.form.kind), best.form


class Matched:
    """One form on one stream: `ends[j][p]` is the furthest end of elements j, j+1, … that begin at launch p."""

    def __init__(self, form: Form, fits: list[Bools]) -> None:
        self.form = form
        count = len(fits[0])
        self.fits = fits
        self.ends: list[Ints] = [np.arange(count + 1, dtype=np.int64)]
        for element, here in zip(reversed(form.sequence), reversed(fits), strict=True):
            self.ends.insert(0, _ends(element, here, self.ends[0]))

    def taken(self, start: int) -> list[int]:
        """Places of the launches that belong to the boundary, of the match that begins at `start`."""
        places: list[int] = []
        at = start
        for j, element in enumerate(self.form.sequence):
            goal = self.ends[j][at]
            length = self._rounds(j, element, at, int(goal))
            if element.fate == TAKEN:
                places += range(at, at + length)
            at += length
        return places

    def _rounds(self, j: int, element: Element, at: int, goal: int) -> int:
        """How many launches the element takes so that the whole reaches `goal`: as many as it can, or as few."""
        if element.between:
            return next(r for r in range(len(self.fits[j]) - at + 1) if self.ends[j + 1][at + r] != NONE)
        most = 0
        while most < element.most and at + most < len(self.fits[j]) and self.fits[j][at + most]:
            most += 1
        return next(r for r in range(most, element.least - 1, -1) if self.ends[j + 1][at + r] == goal)


def _ends(element: Element, fits: Bools, after: Ints) -> Ints:
    """[n + 1] furthest end of this element and the rest from each place; `after` is that of the rest."""
    best = after.copy() if element.least == 0 else np.full_like(after, NONE)
    if element.most == 1 and not element.between:
        best[:-1] = np.maximum(best[:-1], np.where(fits, after[1:], NONE))
        return best
    if element.between:
        # As few as it takes: a wide pattern must not run through to the next site.
        for place in range(len(fits) - 1, -1, -1):
            if best[place] == NONE and fits[place]:
                best[place] = best[place + 1]
        return best
    if element.most >= ALL:
        furthest = NONE
        for place in range(len(fits) - 1, -1, -1):
            furthest = max(furthest, int(after[place + 1])) if fits[place] else NONE
            best[place] = max(int(best[place]), furthest)
        return best
    # How many fitting launches follow each other from each place.
    breaks = np.append(np.flatnonzero(~fits), len(fits))
    runs = breaks[np.searchsorted(breaks, np.arange(len(fits)))] - np.arange(len(fits))
    least = max(element.least, 1)
    for place in np.flatnonzero(runs >= least).tolist():
        last = min(int(runs[place]), element.most)
        best[place] = max(int(best[place]), int(after[place + least : place + last + 1].max()))
    return best


def _subtypes_by_last(rule: BoundaryRule, codes: Ints, kernels: Kernels) -> list[str]:
    """[n] the subtype that the nearest earlier launch with one of the rule's roles decides, "" for none."""
    told = [rule.subtype_by_last.get(role, "") for role in kernels.roles]
    subtypes, last = [], ""
    for code in codes.tolist():
        subtypes.append(last)
        last = told[code] or last
    return subtypes
