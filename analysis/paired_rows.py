"""Kernels before and after: one row a kernel in each place, the boundary or elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.changes import Change, sites_of
from fusionscope.analysis.controls import controls

#: A control counts as unmoved within this many standard errors of its per-replay sums, and within this part of its
#: time: kernels that nothing touched differed by up to 0.5 % between two captures on an H200.
CONTROL_BAND, CONTROL_DRIFT = 3.0, 0.01
#: With so many replays on both sides a row must also stand out among all rows (see `controls`).
ENOUGH_REPLAYS = 8


@dataclass(frozen=True)
class Cell:
    """One kernel on one side: launches of a forward, median of a launch, median over replays of their sum (ns)."""

    launches: int = 0
    median_ns: float = 0.0
    sum_ns: float = 0.0
    #: Standard error of sum_ns over the replays, ns.
    error_ns: float = 0.0
    #: The sum in each replay, ns.
    sums: tuple[float, ...] = field(default=(), repr=False)


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
    chance = _by_chance(*sides)
    rows = []
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        name, where = key
        before, role = sides[0].get(key, (Cell(), ""))
        after, other = sides[1].get(key, (Cell(), ""))
        status = _status(before, after)
        if status in ("grown", "shrunk") and key in chance:
            status = "untouched"
        rows.append(Row(name, role or other, where, before, after, status))
    return sorted(rows, key=lambda r: (not r.where, -abs(r.difference_ns), r.name))


_Cells = dict[tuple[str, str], tuple[Cell, str]]


def _by_chance(base: _Cells, candidate: _Cells) -> set[tuple[str, str]]:
    """Rows of as many launches on both sides that differ by no more than some row of so many does by chance."""
    both = [key for key in base if key in candidate and base[key][0].launches == candidate[key][0].launches]
    cells = [(str(place), base[key][0].sums, candidate[key][0].sums) for place, key in enumerate(both)]
    if not cells or any(min(len(before), len(after)) < ENOUGH_REPLAYS for _, before, after in cells):
        return set()
    found = controls({k: np.array(v) for k, v, _ in cells}, {k: np.array(v) for k, _, v in cells}, drift=0.0)
    return {both[int(row.name)] for row in found if not row.moved}


def _cells(run: Analysed, claims: list[Change]) -> _Cells:
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
        cell = Cell(len(columns), float(np.median(duration)), float(np.median(sums)), error, tuple(sums.tolist()))
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
