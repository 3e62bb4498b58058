"""Which path is fastest at a site, as measured: tables of microseconds, and the ranking that `auto` follows.

A table belongs to one GPU model. A row is one boundary at one hidden size, number of ranks and number of tokens, with
the time of each path that ran there. `fusionscope tune` writes the table of this machine; tables of some GPUs come with
the package. Rules, in this order:
1. the row of this boundary, hidden size and number of ranks with the fewest tokens that are not below the site's;
   past the last row, the last one
2. no such row: those of the nearest number of ranks, then of the nearest hidden size, and the source says
   "inherited from ..."; one rank and several never inherit from each other
3. paths that are faster than split by MARGIN, fastest first; then split. One that is not faster is never taken.
   Between two numbers of tokens a path must be faster at both
4. no row of this boundary for this GPU: split, and the source says what to run
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fusionscope.fusion_runtime.errors import BadTuningTable

MARGIN = 0.02
"""Part of split's time by which a path must be faster to be taken."""

ENVIRONMENT = "FUSIONSCOPE_TUNING"
"""Names the file to use in place of this machine's own table."""

SHIPPED = Path(__file__).parent / "tuned"
SPLIT = "split"


@dataclass(frozen=True)
class Row:
    """us: path to microseconds of one site, `split` among them; emulated: the ranks shared one GPU."""

    boundary: str
    hidden: int
    tp: int
    tokens: int
    us: Mapping[str, float]
    emulated: bool = False


@dataclass(frozen=True)
class Ranking:
    """paths: those to try, best first (split comes last anyway); source: where that was measured."""

    paths: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Table:
    """The rows of one GPU model; `measured` says when and with which versions."""

    gpu: str
    rows: Sequence[Row] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)

    def ranking(self, boundary: str, tokens: int, hidden: int, tp: int) -> Ranking:
        """What to try at a site, by the rules of this module."""
        # One rank has nothing to reduce: its times say nothing about several, nor theirs about it.
        mine = [row for row in self.rows if row.boundary == boundary and (row.tp == 1) == (tp == 1)]
        if not mine:
            where = f"at tp {tp} on {self.gpu or 'this device'}"
            why = f"no {boundary} was measured {where}: fusionscope tune MODEL --tp {tp} measures it"
            return Ranking((), why)
        near = min(mine, key=lambda row: (apart(row.tp, tp), apart(row.hidden, hidden), row.hidden, row.tp))
        group = sorted((r for r in mine if (r.tp, r.hidden) == (near.tp, near.hidden)), key=lambda row: row.tokens)
        row = next((r for r in group if r.tokens >= tokens), group[-1])
        here = f"{row.tokens} tokens, hidden {row.hidden}, tp {row.tp}{' (emulated ranks)' if row.emulated else ''}"
        exact = (row.hidden, row.tp) == (hidden, tp) and tokens <= row.tokens
        fewer = [r for r in group if r.tokens < tokens <= row.tokens] if tokens != row.tokens else []
        paths = tuple(path for path in faster(row.us) if not fewer or path in faster(fewer[-1].us))
        return Ranking(paths, f"measured at {here}" if exact else f"inherited from {here}")

    def digest(self) -> str:
        """The same for tables that rank alike; ranks with different ones would wait for each other for ever."""
        rows = [[row.boundary, row.hidden, row.tp, row.tokens, sorted(row.us.items())] for row in self.rows]
        return hashlib.sha256(json.dumps(sorted(rows)).encode()).hexdigest()

    def gates(self) -> list[str]:
        """One sentence for each boundary, hidden size and number of ranks: up to how many tokens what is fastest."""
        groups: dict[tuple[str, int, int], list[Row]] = {}
        for row in self.rows:
            groups.setdefault((row.boundary, row.hidden, row.tp), []).append(row)
        return [
            f"{boundary}, hidden {hidden}, tp {tp}: {gate(rows)}" for (boundary, hidden, tp), rows in groups.items()
        ]


def apart(a: int, b: int) -> float:
    """How many doublings lie between two sizes."""
    return abs(math.log2(a / b))


def faster(us: Mapping[str, float]) -> tuple[str, ...]:
    """The paths of a row that beat split by MARGIN, fastest first."""
    split = us[SPLIT]
    winners = [path for path, time in us.items() if path != SPLIT and time <= split * (1 - MARGIN)]
    return tuple(sorted(winners, key=lambda path: us[path]))


def gate(rows: Iterable[Row]) -> str:
    """`fuse up to 16 tokens (triton, 1.52 x split)`, or that fusing does not pay."""
    ordered = sorted(rows, key=lambda row: row.tokens)
    paying: list[Row] = []
    for row in ordered:
        if not faster(row.us):
            break
        paying.append(row)
    if not paying:
        later = [row.tokens for row in ordered if faster(row.us)]
        return f"do not fuse at {ordered[0].tokens} tokens" + (f", fuse at {later}" if later else " or any measured")
    best = [faster(row.us)[0] for row in paying]
    gains = [row.us[SPLIT] / row.us[path] for row, path in zip(paying, best, strict=True)]
    limit = f"up to {paying[-1].tokens} tokens" if len(paying) < len(ordered) else f"at all {len(ordered)} sizes"
    return f"fuse {limit} ({' or '.join(dict.fromkeys(best))}, {min(gains):.2f} to {max(gains):.2f} x split)"


def slug(gpu: str) -> str:
    """A GPU's name as a file name."""
    return re.sub(r"[^a-z0-9]+", "_", gpu.lower()).strip("_") or "none"


def own_path(gpu: str) -> Path:
    """Where the table of this machine's GPU lies: $FUSIONSCOPE_TUNING, else under $XDG_DATA_HOME or ~/.local/share."""
    named = os.environ.get(ENVIRONMENT)
    if named:
        return Path(named)
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "fusionscope" / "tuned" / f"{slug(gpu)}.json"


def load(gpu: str) -> Table:
    """The table for a GPU model: this machine's own rows before those that come with the package.

    Raises BadTuningTable where a file cannot be read or belongs to another GPU, or $FUSIONSCOPE_TUNING names none.
    """
    own, shipped = own_path(gpu), SHIPPED / f"{slug(gpu)}.json"
    if os.environ.get(ENVIRONMENT) and not own.is_file():
        raise BadTuningTable(
            f"{ENVIRONMENT} names {own}, which is not there: write it with fusionscope tune, or unset it."
        )
    tables = [read(path, gpu) for path in (own, shipped) if path.is_file()]
    if not tables:
        return Table(gpu)
    return Table(gpu, merged(*(table.rows for table in tables)), tables[0].measured)


def merged(*tables: Iterable[Row]) -> list[Row]:
    """Rows of several tables; of two for one place the first counts."""
    rows: dict[tuple[str, int, int, int], Row] = {}
    for row in (row for table in tables for row in table):
        rows.setdefault((row.boundary, row.hidden, row.tp, row.tokens), row)
    return [rows[place] for place in sorted(rows)]


def read(path: Path, gpu: str | None = None) -> Table:
    """A table's file. Raises BadTuningTable where it is none, or is of another GPU than `gpu`."""
    try:
        told = json.loads(path.read_text())
        table = Table(told["gpu"], [Row(**row) for row in told["rows"]], told.get("measured", {}))
        lacking = [row for row in table.rows if SPLIT not in row.us]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadTuningTable(
            f"{path} is no tuning table ({type(error).__name__}): write one with fusionscope tune."
        ) from error
    if lacking:
        raise BadTuningTable(
            f"{path} has a row of {lacking[0].boundary} without split: write it with fusionscope tune."
        )
    if gpu is not None and table.gpu != gpu:
        raise BadTuningTable(f"{path} was measured on {table.gpu} and this is {gpu}: name another in {ENVIRONMENT}.")
    return table


def write(table: Table, path: Path) -> None:
    """Writes a table; what a killed process leaves behind is the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n  ".join(json.dumps(asdict(row)) for row in table.rows)
    head = json.dumps({"gpu": table.gpu, "measured": dict(table.measured)}, indent=1)[:-2]
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(f'{head},\n "rows": [\n  {rows}\n ]\n}}\n')
    unfinished.replace(path)


@cache
def of_this_machine() -> Table:
    """The table of the current GPU, read once."""
    import torch

    return load(torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu")
