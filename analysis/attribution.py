"""Which launches belong to which boundary, and how we know (the rung of each site).

Rung 1 is the graph nodes that the capture recorded, 2 the ranges open when the work was launched, 3 the place in the
replay where the trace has no node ids (or the same place of a sibling run), 4 the rules by name.
The best rung that knows a kind of boundary decides for that kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fusionscope.analysis import ordinal
from fusionscope.analysis.forwards import Forward
from fusionscope.analysis.marked import SOURCES, marked_sites
from fusionscope.analysis.matching import match_sites
from fusionscope.analysis.ruleset import Rules
from fusionscope.analysis.sites import Site, check_kinds, select
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.trace import Trace


@dataclass(frozen=True)
class Attribution:
    """One forward with the role of each launch and the sites of every kind of boundary."""

    forward: Forward
    #: [n] role of each launch, "" unknown.
    roles: list[str]
    #: Every kind, also with no sites.
    sites: dict[str, list[Site]]
    rungs: dict[str, int]
    warnings: tuple[str, ...] = ()

    def columns(self, kind: str, subtype: str = "") -> NDArray[np.int64]:
        """The launches of a kind (and subtype), as sorted column numbers."""
        chosen = [s for s in self.sites[kind] if not subtype or s.subtype == subtype]
        return np.array(sorted({c for s in chosen for c in s.columns}), dtype=np.int64)

    def nested(self, kind: str) -> dict[str, int]:
        """How many of the sites of a kind lie within a site of each other kind."""
        found: dict[str, int] = {}
        for outer, sites in self.sites.items():
            if outer == kind or not sites:
                continue
            holder = {c: set(s.columns) for s in sites for c in s.columns}
            inside = sum(
                1
                for s in self.sites[kind]
                if s.columns[0] in holder
                and set(s.columns) <= holder[s.columns[0]]
                # One launch that is a whole site of both kinds: the wider kind is the one that is not nested itself.
                and (set(s.columns) < holder[s.columns[0]] or _WIDTH.get(outer, 0) > _WIDTH.get(kind, 0))
            )
            if inside:
                found[outer] = inside
        return found

    def coverage(self) -> dict[str, float]:
        """Share of kernel time by the best rung that knows each launch; sums to 1."""
        weight = self.forward.duration.sum(axis=0).astype(float)
        best = ["role" if role else "none" for role in self.roles]
        for rung in sorted({r for r in self.rungs.values()}, reverse=True):
            for kind, sites in self.sites.items():
                if self.rungs[kind] == rung:
                    for column in (c for s in sites for c in s.columns):
                        best[column] = str(rung)
        total = weight.sum() or 1.0
        shares = dict.fromkeys(("1", "2", "3", "4", "role", "none"), 0.0)
        for column, rung_name in enumerate(best):
            shares[rung_name] += float(weight[column] / total)
        return shares


# A wider kind contains a narrower one even where a fused launch is all of both.
_WIDTH = {"moe_finalize": 1, "mhc_post_pre": 1}


def attribute(
    trace: Trace,
    forward: Forward,
    rules: Rules,
    *,
    complete_provenance: bool = False,
    site_filter: str | None = None,
    rung: int | None = None,
    layers: int = -1,
    sibling: Attribution | None = None,
) -> Attribution:
    """Attribute one forward.

    `complete_provenance`: the capture marked every boundary it has, so that a kind it did not mark has no sites.
    `site_filter` keeps sites only (see `sites.select`); `rung` uses that rung alone. `layers` of the model, where they
    are known, check the kinds that expect so many sites a layer. `sibling`: a run of the same program whose sites are
    taken over by place where this run's own provenance and ranges tell none.
    Raises FusionScopeError for a bad filter, or a rung that the trace cannot serve.
    """
    names = forward.nodes["name"].astype(str).tolist()
    raws = forward.nodes["raw_name"].astype(str).tolist()
    roles = _roles(rules, names, raws)
    ruled = match_sites(forward, roles, names, raws, rules)
    warnings: list[str] = []
    marked, marked_rung = marked_sites(trace, forward, rung, sibling, ruled, warnings)
    if rung in (1, 2, 3) and not marked:
        reason = f" ({warnings[-1].rstrip('.')})" if warnings else ""
        raise FusionScopeError(
            f"The run has no {SOURCES[rung]} for this forward{reason}: leave --rung out to use what there is."
        )
    if marked_rung == 3:
        warnings += ordinal.disagreements(marked, ruled, lambda column: names[column])
    sites: dict[str, list[Site]] = {}
    rungs: dict[str, int] = {}
    for kind in [*ruled, *(k for k in marked if k not in ruled)]:
        by_mark = kind in marked or (complete_provenance and bool(marked) and kind in _WHOLE_MODEL)
        if rung in (1, 2, 3):
            by_mark = True
        sites[kind] = _told(marked.get(kind, []), ruled.get(kind, [])) if by_mark else ruled[kind]
        rungs[kind] = marked_rung if by_mark else 4
    warnings += _unexpected(rules, sites, layers)
    if site_filter:
        check_kinds(site_filter, sites)
        sites = {kind: select(found, site_filter) for kind, found in sites.items()}
    return Attribution(forward, roles, sites, rungs, tuple(warnings))


def _unexpected(rules: Rules, sites: dict[str, list[Site]], layers: int) -> list[str]:
    found = []
    for rule in rules.boundaries:
        expected = rule.expected(layers)
        if expected is not None and expected != len(sites[rule.name]):
            found.append(
                f"{rule.name} has {len(sites[rule.name])} sites and its rules expect {expected}: `fusionscope rules "
                "check FILE RUN` shows where it almost matches."
            )
    return found


#: The kinds that our own decode step marks wherever it has them.
_WHOLE_MODEL = ("ar_norm", "moe_finalize", "mhc_post", "add_norm")


def _roles(rules: Rules, names: list[str], raws: list[str]) -> list[str]:
    known = {pair: rules.role_of(*pair) for pair in set(zip(names, raws, strict=True))}
    return [known[pair] for pair in zip(names, raws, strict=True)]


def _told(marked: list[Site], ruled: list[Site]) -> list[Site]:
    """Marked sites, with the subtype and form of the rules where the mark has none and both see the same launches."""
    by_columns = {s.columns: s for s in ruled}
    return [
        replace(s, subtype=s.subtype or other.subtype, form=other.form) if (other := by_columns.get(s.columns)) else s
        for s in marked
    ]
