"""Two runs side by side: first whether the fusion fired, then what changed and what stayed as a control.

Launches compare exactly. A boundary's rows and the same kernel elsewhere are two populations; rows add up to totals.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.forwards import Forward, forwards
from fusionscope.analysis.sites import Site
from fusionscope.analysis.verdict import MARGIN, Verdict, judge

#: A control counts as unmoved within this many standard errors of its per-replay sums, and within this part of its
#: time: kernels that nothing touched differed by up to 0.5 % between two captures on an H200.
CONTROL_BAND, CONTROL_DRIFT = 3.0, 0.01


@dataclass(frozen=True)
class Cell:
    """One kernel on one side: launches of a forward, median of a launch, median over replays of their sum (ns)."""

    launches: int = 0
    median_ns: float = 0.0
    sum_ns: float = 0.0
    #: Standard error of sum_ns over the replays, ns.
    error_ns: float = 0.0


@dataclass(frozen=True)
class Row:
    """A kernel before and after; `where` is the boundary that it lies in, "" elsewhere."""

    name: str
    role: str
    where: str
    base: Cell
    candidate: Cell
    status: str

    @property
    def difference_ns(self) -> float:
        """Candidate minus base."""
        return self.candidate.sum_ns - self.base.sum_ns


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


@dataclass(frozen=True)
class Comparison:
    """Everything that `compare` and `summary` say."""

    base: Analysed
    candidate: Analysed
    changes: list[Change]
    fired: Fired | None
    #: What the candidate fused: the widest change first, then those with sites outside it, and how many those are.
    claims: list[tuple[Change, int]]
    rows: list[Row]
    same_sequence: bool
    #: Unknown kernels that appear as often as sites vanished.
    suspects: list[tuple[str, int, str]]
    differs: dict[str, tuple[str, str]]
    measured: Verdict | None
    measured_saving_ns: float | None
    measured_interval_ns: tuple[float, float] | None
    mde_ns: float | None


def compare(base: Analysed, candidate: Analysed, margin: float = MARGIN) -> Comparison:
    """Compare two analysed runs (base first)."""
    candidate = _paired(base, candidate)
    changes = [change for kind in base.attribution.sites for change in _changes(base, candidate, kind)]
    same = list(base.forward.nodes["name"].astype(str)) == list(candidate.forward.nodes["name"].astype(str))
    claims = [] if same else _claims(base, changes)
    fired = _fired(base, candidate, claims[0][0]) if claims else None
    verdict, saving, interval, mde = _measured(base, candidate, margin)
    return Comparison(
        base=base,
        candidate=candidate,
        changes=changes,
        fired=fired,
        claims=claims,
        rows=_rows(base, candidate, [change for change, _ in claims]),
        same_sequence=same,
        suspects=_suspects(base, candidate, changes),
        differs=_differs(base, candidate),
        measured=verdict,
        measured_saving_ns=saving,
        measured_interval_ns=interval,
        mde_ns=mde,
    )


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


def _claims(base: Analysed, changes: list[Change]) -> list[tuple[Change, int]]:
    first = claimed(changes)
    if first is None:
        return []
    found, taken = [(first, first.fired_sites)], set(base.attribution.columns(first.boundary, first.subtype).tolist())
    for change in changes:
        if change.fired_sites and change is not first:
            # A site that lies in (or around) one of another claim is that claim's shadow, not a fusion of its own.
            own = [s for s in _sites(base, change) if not taken & set(s.columns)]
            if own:
                found.append((change, len(own)))
                taken |= {c for s in own for c in s.columns}
    return found


def _sites(run: Analysed, change: Change) -> list[Site]:
    sites = run.attribution.sites.get(change.boundary, [])
    return [s for s in sites if not change.subtype or s.subtype == change.subtype]


def _paired(base: Analysed, candidate: Analysed) -> Analysed:
    """The candidate's forward that is most like the base's, by how many kernel names they share."""
    if len(candidate.forwards) < 2:
        return candidate
    wanted = base.forward.nodes["name"].astype(str).value_counts()

    def shared(forward: Forward) -> int:
        have = forward.nodes["name"].astype(str).value_counts()
        return int(np.minimum(*wanted.align(have, fill_value=0)).sum()) * 2 - forward.launches

    best = max(candidate.forwards, key=shared)
    if best.kind == candidate.forward.kind:
        return candidate
    return candidate.of(best)


def _changes(base: Analysed, candidate: Analysed, kind: str) -> list[Change]:
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


def _fired(base: Analysed, candidate: Analysed, claim: Change) -> Fired:
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


def _rows(base: Analysed, candidate: Analysed, claims: list[Change]) -> list[Row]:
    sides = [_cells(run, claims) for run in (base, candidate)]
    rows = []
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        name, where = key
        before, role = sides[0].get(key, (Cell(), ""))
        after, other = sides[1].get(key, (Cell(), ""))
        rows.append(Row(name, role or other, where, before, after, _status(before, after)))
    return sorted(rows, key=lambda r: (not r.where, -abs(r.difference_ns), r.name))


def _cells(run: Analysed, claims: list[Change]) -> dict[tuple[str, str], tuple[Cell, str]]:
    inside: dict[int, str] = {}
    for claim in claims:
        own = [s for s in _sites(run, claim) if not any(c in inside for c in s.columns)]
        inside |= {c: claim.name for s in own for c in s.columns}
    places: dict[tuple[str, str], list[int]] = {}
    for column, name in enumerate(run.forward.nodes["name"].astype(str)):
        where = inside.get(column, "")
        places.setdefault((name, where), []).append(column)
    cells = {}
    for key, columns in places.items():
        duration = run.forward.duration[:, columns]
        sums = duration.sum(axis=1)
        error = float(np.std(sums, ddof=1) / np.sqrt(len(sums))) if len(sums) > 1 else 0.0
        cell = Cell(len(columns), float(np.median(duration)), float(np.median(sums)), error)
        cells[key] = (cell, run.attribution.roles[columns[0]])
    return cells


def _status(before: Cell, after: Cell) -> str:
    if not before.launches:
        return "added"
    if not after.launches:
        return "removed"
    if before.launches != after.launches:
        return "more launches" if after.launches > before.launches else "fewer launches"
    moved = after.sum_ns - before.sum_ns
    errors = CONTROL_BAND * np.hypot(before.error_ns, after.error_ns)
    band = float(np.hypot(errors, CONTROL_DRIFT * before.sum_ns))
    if abs(moved) <= band:
        return "untouched"
    return "grown" if moved > 0 else "shrunk"


def _suspects(base: Analysed, candidate: Analysed, changes: list[Change]) -> list[tuple[str, int, str]]:
    """(kernel, launches, boundary): unknown kernels new in the candidate, as often as sites of a boundary vanished."""
    before = set(base.forward.nodes["name"].astype(str))
    names = candidate.forward.nodes["name"].astype(str)
    roles = dict(zip(names, candidate.attribution.roles, strict=True))
    counts = {name: int((names == name).sum()) for name in set(names) - before if not roles[name]}
    return [
        (name, lost, change.name)
        for change in changes
        if (lost := change.base_sites - change.candidate_sites) > 0
        for name, count in sorted(counts.items())
        if count == lost
    ]


#: State of the machine at the moment, which always differs a little and is no choice of the runs.
_MOMENTARY = ("temperature", "clock_mhz", "throttle", "power")
_COMPARED = ("model", "tp", "batch", "context", "layers", "device", "profiler", "tool_version")


def _differs(base: Analysed, candidate: Analysed) -> dict[str, tuple[str, str]]:
    """What differs between the runs: settings, recorded environment variables, versions, labels."""

    def facts(run: Analysed) -> dict[str, str]:
        info = run.info
        known = {name: str(getattr(info, name)) for name in _COMPARED}
        if not info.imported:
            known |= {f"path {k}": "split" for k in ("ar_norm", "moe_finalize", "mhc_post")}
        known |= {f"path {k}": v for k, v in info.paths.items()}
        known |= info.environment | {f"set {k}": v for k, v in info.settings.items()}
        known |= {
            k: v
            for k, v in (info.machine or run.run.trace.machine).items()
            if not any(m in k.lower() for m in _MOMENTARY)
        }
        known["labels"] = ", ".join(info.labels)
        return known

    before, after = facts(base), facts(candidate)
    keys = dict.fromkeys([*before, *after])
    return {k: (before.get(k, "unset"), after.get(k, "unset")) for k in keys if before.get(k) != after.get(k)}


def _measured(
    base: Analysed, candidate: Analysed, margin: float
) -> tuple[Verdict | None, float | None, tuple[float, float] | None, float | None]:
    """The verdict on untraced times, where both runs have them; a difference of two processes is one sample."""
    if base.untraced is None or candidate.untraced is None or base.untraced.source != candidate.untraced.source:
        return None, None, None, None
    saving = base.untraced.median_ns - candidate.untraced.median_ns
    errors = [
        np.hypot(side.interval_ns[0] - side.median_ns, side.interval_ns[1] - side.median_ns) / np.sqrt(2)
        for side in (base.untraced, candidate.untraced)
    ]
    half = float(np.hypot(*errors))
    interval = (saving - half, saving + half)
    floors = [side.mde_ns for side in (base.untraced, candidate.untraced)]
    mde = None if None in floors else max(f for f in floors if f is not None)
    if np.isnan(half):
        interval, mde = (-abs(saving), 3 * abs(saving)), None
    verdict = judge(
        saving, interval, base.untraced.median_ns, mde, kind="measured", margin=margin,
        missing="More untraced replays of both runs would settle it.",
        caution="" if _one_process(base, candidate) else
        "Both sides ran in processes of their own, and processes differ: this is one sample of that.",
    )  # fmt: skip
    return verdict, saving, interval, mde


def _one_process(base: Analysed, candidate: Analysed) -> bool:
    """Whether both sides' times came from one file, interleaved (two arms of the same measurement)."""
    return bool(
        {i.sha256 for i in base.info.inputs if i.path.endswith(".json")}
        & {i.sha256 for i in candidate.info.inputs if i.path.endswith(".json")}
    )
