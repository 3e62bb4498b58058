"""Kernels before and after: one row a kernel in each place, the boundary or elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.changes import Change, sites_of

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

    @property
    def band_ns(self) -> float:
        """How far an untouched kernel's sum may move: its errors on both sides and the drift between captures."""
        return _band(self.base, self.candidate)


def paired_rows(base: Analysed, candidate: Analysed, claims: list[Change]) -> list[Row]:
    """Every kernel of either run in each place, most changed first, the claims' boundaries before elsewhere."""
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
        own = [s for s in sites_of(run, claim) if not any(c in inside for c in s.columns)]
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
    if abs(moved) <= _band(before, after):
        return "untouched"
    return "grown" if moved > 0 else "shrunk"


def _band(before: Cell, after: Cell) -> float:
    errors = CONTROL_BAND * np.hypot(before.error_ns, after.error_ns)
    return float(np.hypot(errors, CONTROL_DRIFT * before.sum_ns))
