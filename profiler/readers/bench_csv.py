"""Times of split and fused kernels from a table that somebody measured: tokens, split_us, fused_us, setting."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.runinfo import RunInfo

#: Settings in order of trust. The isolated ones differ in whether the data was in cache.
SETTINGS = ("candidate", "in-context", "isolated-cold", "isolated-hot", "isolated")
COLUMNS = ("tokens", "split_us", "fused_us", "setting")


#: Key of a run's settings that says of which boundary it is a bench, and the path that the others are held against.
BENCH, SPLIT = "bench", "split"
#: Setting -> field of a row as `fusionscope bench` takes it, ns.
TAKEN = {"in-context": "in_context_ns", "isolated-cold": "isolated_cold_ns", "isolated-hot": "isolated_hot_ns"}


class _Stored(msgspec.Struct):
    """What is read of a row in a run's settings."""

    tokens: int
    path: str
    why: str = ""
    in_context_ns: float | None = None
    isolated_hot_ns: float | None = None
    isolated_cold_ns: float | None = None


@dataclass(frozen=True)
class BenchRow:
    """Times of one site, ns; `split_ns` is None where it was not measured, `path` "" where the table does not tell."""

    tokens: int
    split_ns: float | None
    fused_ns: float
    setting: str
    path: str = ""


def read_bench(path: str | Path) -> list[BenchRow]:
    """The rows of a bench table (CSV with a header; `path` may name the fused one, further columns are ignored).

    Raises FusionScopeError for a file that cannot be read, a missing column, or a value that is no time.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [c for c in COLUMNS if c not in (reader.fieldnames or [])]
            if missing:
                raise FusionScopeError(
                    f"{path} has no column {', '.join(missing)}: a bench table has {', '.join(COLUMNS)}."
                )
            return [_row(path, reader.line_num, line) for line in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise FusionScopeError(f"The bench table {path} cannot be read ({why}): give a CSV file.") from error


def rows_of_run(info: RunInfo, boundary: str) -> list[BenchRow]:
    """The rows that a run of `fusionscope bench` holds.

    Raises FusionScopeError where it is no such run, or was taken of another boundary.
    """
    there = info.settings.get(BENCH, "")
    if not there:
        raise FusionScopeError(f"{info.name or info.id} holds no bench: `fusionscope bench` makes such a run.")
    if there != boundary:
        raise FusionScopeError(f"{info.name or info.id} is a bench of {there}, not of {boundary}: bench that.")
    try:
        stored = msgspec.json.decode(info.settings.get("rows", ""), type=list[_Stored])
    except msgspec.DecodeError as error:
        raise FusionScopeError(f"The bench {info.name or info.id} cannot be read ({error}): bench again.") from error
    return bench_rows(msgspec.structs.asdict(row) for row in stored)


def bench_rows(rows: Iterable[Mapping[str, Any]]) -> list[BenchRow]:
    """Rows as `fusionscope bench` takes them, as a row for each fused path, setting and number of tokens."""
    taken = list(rows)
    split = {row["tokens"]: row for row in taken if row["path"] == SPLIT}
    made = []
    for row in taken:
        if row["path"] == SPLIT or row["why"]:
            continue
        for setting, field in TAKEN.items():
            # Without the split form beside it a time has nothing to be held against.
            fused, base = row[field], split[row["tokens"]][field] if row["tokens"] in split else None
            if fused is not None and base is not None:
                made.append(BenchRow(row["tokens"], base, fused, setting, row["path"]))
    return made


def bench_row(rows: list[BenchRow], tokens: int, path: str | Path, fused: str = "") -> BenchRow:
    """The row for that many tokens (and that fused path) from the most trusted setting; the last of several.

    Raises FusionScopeError where there is none: times of other batches are not interpolated. Also where the table has
    several fused paths and none is chosen.
    """
    if fused:
        known = sorted({row.path for row in rows if row.path})
        rows = [row for row in rows if row.path == fused]
        if not rows:
            raise FusionScopeError(f"{path} has no path {fused}: it has {', '.join(known) or 'none named'}.")
    mine = [row for row in rows if row.tokens == tokens]
    several = sorted({row.path for row in mine})
    if len(several) > 1:
        there = ", ".join(name or "one without a name" for name in several)
        raise FusionScopeError(f"{path} has several fused paths ({there}): choose one with --from-path.")
    if not mine:
        there = ", ".join(map(str, sorted({row.tokens for row in rows}))) or "none"
        asked = f"{tokens} tokens" if tokens > 0 else "a run that does not know its batch"
        raise FusionScopeError(f"{path} has no row for {asked} (it has {there}): choose one with --tokens.")
    return min(reversed(mine), key=lambda row: SETTINGS.index(row.setting))


def _row(path: str | Path, line: int, cells: dict[str, str | None]) -> BenchRow:
    where = f"{path}, line {line}:"
    setting = (cells["setting"] or "").strip().lower().replace("_", "-").replace(" ", "-")
    if setting not in SETTINGS:
        raise FusionScopeError(f"{where} the setting {cells['setting']!r} is not known, choose {', '.join(SETTINGS)}.")
    fused = _number(where, "fused_us", cells["fused_us"])
    assert fused is not None
    split = _number(where, "split_us", cells["split_us"], optional=True)
    try:
        tokens = int((cells["tokens"] or "").strip())
    except ValueError as error:
        raise FusionScopeError(f"{where} tokens is a whole number, not {cells['tokens']!r}.") from error
    return BenchRow(
        tokens, None if split is None else 1000 * split, 1000 * fused, setting, (cells.get("path") or "").strip()
    )


def _number(where: str, name: str, text: str | None, optional: bool = False) -> float | None:
    stripped = (text or "").strip()
    if optional and not stripped:
        return None
    try:
        value = float(stripped)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise FusionScopeError(f"{where} {name} is a time in us above 0, not {text!r}.")
    return value
