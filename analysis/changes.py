"""Boundaries before and after: which became fewer launches, and whether the fusion fired at all."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.forwards import Forward, forwards
from fusionscope.analysis.sites import Site
from fusionscope.analysis.suggest import WORK


@dataclass(frozen=True)
class Change:
    """A boundary (and the subtype that changed, "" all of it) before and after."""

    boundary: str
    subtype: str
    base_sites: int
    candidate_sites: int
    base_launches: int
    candidate_launches: int
    base_ns: float
    candidate_ns: float
    fired_sites: int
    rung: tuple[int, int]
    nested: dict[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """KIND or KIND:SUBTYPE."""
        return f"{self.boundary}:{self.subtype}" if self.subtype else self.boundary


@dataclass(frozen=True)
class Fired:
    """How much of the base's sites, replays and ranks the candidate fused."""

    boundary: str
    sites: int
    of_sites: int
    replays: int
    of_replays: int
    ranks: int
    of_ranks: int

    def told(self) -> str:
        """`90 of 90 sites, 12 of 12 replays, 1 of 1 ranks`; eager forwards have no replays."""
        replays = f"{self.replays:,} of {self.of_replays:,} replays, " if self.of_replays else ""
        return f"{self.sites:,} of {self.of_sites:,} sites, {replays}{self.ranks} of {self.of_ranks} ranks"


def claimed(changes: list[Change]) -> Change | None:
    """The change that the candidate is about: that which takes most launches away.

    Of two that take the same launches away, the wider kind where it has become one launch itself, else the narrower.
    """
    fewer = [c for c in changes if c.fired_sites]

    def weight(change: Change) -> tuple[int, int, int]:
        lost = change.base_launches - change.candidate_launches
        whole = change.candidate_launches == change.candidate_sites
        return lost, len(_inside(changes, change)) if whole else 0, change.fired_sites

    return max(fewer, key=weight, default=None)


def _inside(changes: list[Change], outer: Change) -> list[Change]:
    return [c for c in changes if outer.boundary in c.nested]


def claims_of(base: Analysed, changes: list[Change]) -> list[tuple[Change, int]]:
    """What the candidate fused: the widest change first, then those with sites outside it, and how many those are."""
    first = claimed(changes)
    if first is None:
        return []
    found, taken = [(first, first.fired_sites)], set(base.attribution.columns(first.boundary, first.subtype).tolist())
    for change in changes:
        if change.fired_sites and change is not first:
            # A site that lies in (or around) one of another claim is that claim's shadow, not a fusion of its own.
            own = [s for s in sites_of(base, change) if not taken & set(s.columns)]
            if own:
                found.append((change, len(own)))
                taken |= {c for s in own for c in s.columns}
    return found


def sites_of(run: Analysed, change: Change) -> list[Site]:
    """The sites of a change's kind and subtype in one of the runs."""
    sites = run.attribution.sites.get(change.boundary, [])
    return [s for s in sites if not change.subtype or s.subtype == change.subtype]


def changes_of(base: Analysed, candidate: Analysed, kind: str) -> list[Change]:
    """A kind of boundary before and after, by subtype where a part of the subtypes changed."""
    before, after = base.attribution.sites[kind], candidate.attribution.sites.get(kind, [])
    if not before and not after:
        return [_change(base, candidate, kind, "", before, after)]
    subtypes = sorted({s.subtype for s in before + after})
    # Provenance may not tell subtypes: then only the kind as a whole can be put beside the other side's.
    if not all(subtypes):
        return [_change(base, candidate, kind, "", before, after)]
    parts = [
        _change(
            base, candidate, kind, subtype,
            [s for s in before if s.subtype == subtype], [s for s in after if s.subtype == subtype],
        )
        for subtype in subtypes
    ]  # fmt: skip
    moved = [p for p in parts if p.fired_sites]
    # A fusion of every subtype is one claim, of one subtype alone is narrower and says so.
    if len(parts) == 1 or len(moved) == len(parts):
        return [_change(base, candidate, kind, "", before, after)]
    return parts


def _change(
    base: Analysed, candidate: Analysed, kind: str, subtype: str, before: list[Site], after: list[Site]
) -> Change:
    def time(run: Analysed, sites: list[Site]) -> float:
        columns = sorted({c for s in sites for c in s.columns})
        return float(np.median(run.forward.duration[:, columns].sum(axis=1))) if columns else 0.0

    fewest = min((len(s.columns) for s in before), default=0)
    fired = sum(1 for s in after if s.form == "fused" or len(s.columns) < fewest)
    was = sum(1 for s in before if s.form == "fused")
    return Change(
        boundary=kind,
        subtype=subtype,
        base_sites=len(before),
        candidate_sites=len(after),
        base_launches=len({c for s in before for c in s.columns}),
        candidate_launches=len({c for s in after for c in s.columns}),
        base_ns=time(base, before),
        candidate_ns=time(candidate, after),
        fired_sites=max(min(fired, len(before)) - was, 0),
        rung=(base.attribution.rungs[kind], candidate.attribution.rungs.get(kind, 4)),
        nested=base.attribution.nested(kind),
    )


def fired_of(base: Analysed, candidate: Analysed, claim: Change) -> Fired:
    """In how many of the base's sites, replays and ranks the candidate is fused."""
    trace, rank = candidate.run.trace, candidate.forward.rank
    ranks = sorted(int(r) for r in trace.kernels["rank"].unique())
    fired_ranks = [r for r in ranks if r == rank or _same_kind(candidate, r)]
    # Every execution of this kind of forward is the same sequence; other kinds are replays that did not fire.
    of_replays = sum(f.replays for f in candidate.forwards if _has(f, candidate.forward))
    return Fired(
        boundary=claim.name,
        sites=claim.fired_sites,
        of_sites=claim.base_sites,
        replays=candidate.forward.replays,
        of_replays=max(of_replays, candidate.forward.replays),
        ranks=len(fired_ranks),
        of_ranks=max(len(ranks), candidate.run.info.world_size if not candidate.info.emulated_ranks else 0),
    )


def _has(forward: Forward, like: Forward) -> bool:
    return abs(forward.launches - like.launches) <= 0.5 * like.launches


def _same_kind(candidate: Analysed, rank: int) -> bool:
    names = sorted(candidate.forward.nodes["name"].astype(str))
    others = forwards(candidate.run.trace, rank, candidate.run.info.warmup_replays)
    return any(sorted(f.nodes["name"].astype(str)) == names for f in others)


def suspects(base: Analysed, candidate: Analysed, changes: list[Change]) -> list[tuple[str, int, str]]:
    """(kernel, launches, boundary): kernels new in the candidate, as often as sites of a boundary vanished.

    A fused kernel's name often tells one of the roles that it took over, so that a known role clears none but those
    that do the work of a layer; a kernel in a site is known for what it is.
    """
    before = set(base.forward.nodes["name"].astype(str))
    names = candidate.forward.nodes["name"].astype(str)
    roles = dict(zip(names, candidate.attribution.roles, strict=True))
    placed = {column for sites in candidate.attribution.sites.values() for site in sites for column in site.columns}
    new = set(names) - before - set(names.iloc[sorted(placed)])
    counts = {name: int((names == name).sum()) for name in new if roles[name] not in WORK}
    return [
        (name, lost, change.name)
        for change in changes
        if (lost := change.base_sites - change.candidate_sites) > 0
        for name, count in sorted(counts.items())
        if count == lost
    ]
