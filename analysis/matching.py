"""Rung 4: boundaries as sequences of roles among neighbours on a stream."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fusionscope.analysis.forwards import Forward
from fusionscope.analysis.ruleset import BoundaryRule, Element, Form, Rules
from fusionscope.analysis.sites import Site


def match_sites(
    forward: Forward, roles: list[str], names: list[str], raws: list[str], rules: Rules
) -> dict[str, list[Site]]:
    """The sites of every kind in the rules, in order of start; every kind has an entry."""
    streams = _streams(forward)
    both = list(zip(names, raws, strict=True))
    found: dict[str, list[Site]] = {}
    for rule in rules.boundaries:
        sites = [site for stream in streams for site in _sites_on(stream, rule, roles, both)]
        sites = [s for s in sites if not _covered(s, rule, found)]
        sites.sort(key=lambda s: s.columns[0])
        found[rule.name] = [
            Site(s.boundary, s.subtype, s.layer, s.columns, 4, form=s.form, site=k) for k, s in enumerate(sites)
        ]
    return found


def _streams(forward: Forward) -> list[list[int]]:
    # Neighbours by start of the last execution: the first may hold a warm-up's irregularities.
    order = np.lexsort((np.arange(forward.launches), forward.start[-1]))
    keys = list(zip(forward.nodes["device"], forward.nodes["stream"], strict=True))
    by_stream: dict[tuple[int, int], list[int]] = {}
    for column in order:
        by_stream.setdefault(keys[column], []).append(int(column))
    return list(by_stream.values())


def _sites_on(stream: list[int], rule: BoundaryRule, roles: list[str], names: list[tuple[str, str]]) -> Iterator[Site]:
    at = 0
    while at < len(stream):
        best: tuple[int, Form] | None = None
        for form in rule.forms:
            length = _length(form.sequence, stream[at:], roles, names)
            if length and (best is None or length > best[0]):
                best = (length, form)
        if best is None:
            at += 1
            continue
        length, form = best
        subtype = form.subtype or _subtype_by_last(rule, stream, at, roles)
        yield Site(rule.name, subtype, -1, tuple(stream[at : at + length]), 4, form=form.kind)
        at += length


def _length(sequence: tuple[Element, ...], columns: list[int], roles: list[str], names: list[tuple[str, str]]) -> int:
    """How many launches the sequence takes at the head of `columns`; 0 where it does not match."""
    if not sequence:
        return 0
    head, rest = sequence[0], sequence[1:]
    if columns and head.matches(roles[columns[0]], names[columns[0]]):
        after = _length(rest, columns[1:], roles, names)
        if after or all(e.optional for e in rest):
            return 1 + after
    return _length(rest, columns, roles, names) if head.optional else 0


def _subtype_by_last(rule: BoundaryRule, stream: list[int], at: int, roles: list[str]) -> str:
    if rule.subtype_by_last:
        for column in reversed(stream[:at]):
            if roles[column] in rule.subtype_by_last:
                return rule.subtype_by_last[roles[column]]
    return ""


def _covered(site: Site, rule: BoundaryRule, found: dict[str, list[Site]]) -> bool:
    form = next(f for f in rule.forms if f.kind == site.form)
    return any(site.columns[0] in other.columns for kind in form.unless_in for other in found.get(kind, []))
