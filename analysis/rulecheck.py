"""Tries a rules file on a forward: what each of its boundaries matches, and where it almost did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.matching import Bools, Ints, Kernels, kernels_of, sites_on
from fusionscope.analysis.patterns import found_in
from fusionscope.analysis.ruleset import BoundaryRule, Element, Form, Role

#: Starts of a form that are followed up, and launches that one start is followed for.
_STARTS, _REACH = 5_000, 200


@dataclass(frozen=True)
class NearMiss:
    """A form that began as it should and broke off: at which element, on which kernel, and how often."""

    form: str
    #: Number of the element in the sequence, from 1.
    element: int
    wanted: str
    #: The kernel that stood there instead, "" at the end of the stream.
    found: str
    role: str
    times: int
    #: Launch in the forward (its column) at which it broke off first; -1 at the end of a stream.
    launch: int


@dataclass(frozen=True)
class Checked:
    """One boundary of the file on one forward."""

    boundary: str
    sites: int
    #: None where the rule says nothing, or the run does not know its layers.
    expected: int | None
    wants_layers: bool
    #: (column, role, name) of the launches of the first site.
    first: list[tuple[int, str, str]]
    near: list[NearMiss]

    @property
    def fits(self) -> bool:
        """Whether it has sites, and as many as it expects."""
        return self.sites > 0 and self.expected in (None, self.sites)

    def document(self) -> dict[str, object]:
        """The check as JSON."""
        return {
            "boundary": self.boundary,
            "sites": self.sites,
            "expected": self.expected,
            "fits": self.fits,
            "first": [{"launch": c, "role": r, "name": n} for c, r, n in self.first],
            "near_misses": [
                {
                    "form": m.form,
                    "element": m.element,
                    "wanted": m.wanted,
                    "found": m.found,
                    "role": m.role,
                    "times": m.times,
                    "launch": m.launch,
                }
                for m in self.near
            ],
        }


def check(found: Analysed, rules: Sequence[BoundaryRule], most: int = 5) -> list[Checked]:
    """Every boundary of `rules` on the forward of `found`, by names alone (rung 4); `most` near misses each."""
    forward = found.forward
    names, raws = (forward.nodes[c].astype(str).tolist() for c in ("name", "raw_name"))
    kernels = kernels_of(forward, found.attribution.roles, names, raws)
    checked = []
    for rule in rules:
        sites = [s for stream in kernels.streams for s, _ in sites_on(stream, rule, kernels)]
        sites.sort(key=lambda s: s.columns[0])
        taken = {c for s in sites for c in s.columns}
        first = [(c, found.attribution.roles[c], names[c]) for c in (sites[0].columns if sites else ())]
        layers = found.layers
        expected = rule.expected(layers)
        unknown = bool(rule.expect_sites) and expected is None
        checked.append(Checked(rule.name, len(sites), expected, unknown, first, _near(rule, kernels, taken, most)))
    return checked


def unused(found: Analysed, roles: Sequence[Role]) -> list[Role]:
    """Roles of which no kernel of the forward has the pattern."""
    nodes = found.forward.nodes
    distinct = set(zip(nodes["name"].astype(str), nodes["raw_name"].astype(str), strict=True))
    return [role for role in roles if not any(found_in(role.pattern, *pair) for pair in distinct)]


def _near(rule: BoundaryRule, kernels: Kernels, taken: set[int], most: int) -> list[NearMiss]:
    counts: Counter[tuple[str, int, str, str, str]] = Counter()
    at: dict[tuple[str, int, str, str, str], int] = {}
    for stream in kernels.streams:
        for form in rule.forms:
            for element, column in _broken_off(form, stream, kernels, taken):
                code = kernels.codes[column] if column >= 0 else -1
                name, role = (kernels.names[code][0], kernels.roles[code]) if column >= 0 else ("", "")
                key = (form.kind, element + 1, str(form.sequence[element]), name, role)
                counts[key] += 1
                at.setdefault(key, column)
    ordered = sorted(counts.items(), key=lambda item: (-item[0][1], -item[1], item[0]))
    return [NearMiss(*key, times, at[key]) for key, times in ordered[:most]]


def _broken_off(form: Form, stream: Ints, kernels: Kernels, taken: set[int]) -> list[tuple[int, int]]:
    """(element, column) at which starts of the form outside sites broke off; column -1: the stream ended."""
    lead = next(j for j, e in enumerate(form.sequence) if e.least and not e.between)
    codes = kernels.codes[stream]
    fits = [kernels.fits(e)[codes] for e in form.sequence]
    starts = [int(p) for p in fits[lead].nonzero()[0] if int(stream[p]) not in taken]
    found = []
    for start in starts[:_STARTS]:
        places = {start}
        for j in range(lead, len(form.sequence)):
            reached = {end for p in places for end in _after(form.sequence[j], fits[j], p, start)}
            if not reached:
                # A first element that does not hold long enough is no beginning.
                if j > lead:
                    last = max(places)
                    found.append((j, int(stream[last]) if last < len(stream) else -1))
                break
            places = reached
    return found


def _after(element: Element, fits: Bools, place: int, start: int) -> list[int]:
    """Places after the element, for every number of launches that it can take from `place`."""
    ends = [place] if element.least == 0 else []
    taken = 0
    limit = min(len(fits), start + _REACH)
    while taken < element.most and place + taken < limit and fits[place + taken]:
        taken += 1
        if taken >= element.least:
            ends.append(place + taken)
    return ends
