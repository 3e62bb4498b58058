"""Replay times that a profiler did not slow down: JSON, CSV, or a graph-mode Nsight export."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.readers import nsys_sqlite
from fusionscope.profiler.readers.json_stream import nanoseconds, whole_letters
from fusionscope.profiler.trace import table

_UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_FORMS = (
    'a CSV with a column time_us (or _ns, _ms, _s), a JSON object {"unit": "us", "times": […]}, or a graph-mode '
    "Nsight .sqlite"
)
_COLUMNS = ("rank", "process", "block", "arm")
_Row = dict[str, Any]


def read_timings(spec: str) -> pd.DataFrame:
    """TIMINGS rows of "FILE" or "FILE:ARM"; with ARM only the rows of that arm.

    A row is [process, block, arm, time], [block, arm, time] or [time]; a unit is required and times become whole ns
    without a float on the way. Rows without a rank get -1. A file with several arms needs ARM. Raises FusionScopeError.
    """
    path, arm = _split(spec)
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise FusionScopeError(f"{path} cannot be opened ({error}): --timings takes {_FORMS}.") from error
    if content.startswith(b"SQLite format 3\x00"):
        rows = nsys_sqlite.read(path).timings
        if rows.empty:
            raise FusionScopeError(
                f"{path} has no graph replay times: it was recorded with --cuda-graph-trace=node; "
                "record the same program with --cuda-graph-trace=graph."
            )
        return _of_arm(rows, arm, path)
    text = content.decode("utf-8-sig", errors="replace")
    found = _from_json(text, path) if text.lstrip()[:1] in ("{", "[") else _from_csv(text, path)
    if not found:
        raise FusionScopeError(f"{path} holds no times: --timings takes {_FORMS}.")
    columns = {name: [row.get(name, "" if name == "arm" else -1) for row in found] for name in _COLUMNS}
    columns["duration_ns"] = [row["duration_ns"] for row in found]
    return _of_arm(table("timings", {**columns, "source": "untraced"}), arm, path)


def timings_file(spec: str) -> Path:
    """The file of FILE[:ARM]."""
    return _split(spec)[0]


def _split(spec: str) -> tuple[Path, str]:
    """A colon may be part of the path: the whole is the path where such a file exists."""
    file, colon, arm = spec.rpartition(":")
    if not colon or Path(spec).exists() or not Path(file).exists():
        return Path(spec), ""
    return Path(file), arm


def _of_arm(rows: pd.DataFrame, arm: str, path: Path) -> pd.DataFrame:
    arms = [name for name in dict.fromkeys(rows["arm"].astype(str)) if name]
    if arm:
        picked = rows[rows["arm"].astype(str) == arm]
        if picked.empty:
            known = f"its arms are {', '.join(arms)}" if arms else "it has no arms, leave the name out"
            raise FusionScopeError(f"{path} has no arm {arm}: {known}.")
        return table("timings", picked)
    if len(arms) > 1:
        raise FusionScopeError(f"{path} holds several arms ({', '.join(arms)}): choose one, as in {path}:{arms[0]}.")
    return rows


def _time(value: Any, unit: int, where: str) -> int:
    found = None if value is None or isinstance(value, bool) else nanoseconds(str(value).strip(), unit)
    if found is None or found < 0:
        raise FusionScopeError(f"{where}: {value!r} is no time.")
    return found


def _id(value: Any, where: str) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = 2**63
    if abs(number) >= 2**31:
        raise FusionScopeError(f"{where}: {value!r} is no whole number for a rank, a process or a block.")
    return number


def _from_json(text: str, path: Path) -> list[_Row]:
    try:
        # Decimals stay text: a float would round them before they are ns.
        data = json.loads(text, parse_float=str)
    except (ValueError, RecursionError) as error:
        raise FusionScopeError(f"{path} is no JSON ({error}): --timings takes {_FORMS}.") from error
    if isinstance(data, list):
        return [_from_fields(row, f"{path}, row {n}") for n, row in enumerate(data)]
    unit = _UNITS.get(str(data.get("unit")))
    if unit is None:
        raise FusionScopeError(f'{path} tells no unit: add "unit": "us" (or ns, ms, s).')
    by_rank = data.get("rows_by_rank")
    if isinstance(by_rank, dict):
        return [
            {"rank": _id(rank, str(path)), **_from_list(row, unit, f"{path}, rank {rank}, row {n}")}
            for rank, rows in by_rank.items()
            for n, row in enumerate(rows if isinstance(rows, list) else [rows])
        ]
    rows = data.get("rows", data.get("times"))
    if not isinstance(rows, list):
        raise FusionScopeError(f"{path} has no rows, rows_by_rank or times: --timings takes {_FORMS}.")
    rank = {"rank": _id(data["rank"], str(path))} if "rank" in data else {}
    return [{**rank, **_from_list(row, unit, f"{path}, row {n}")} for n, row in enumerate(rows)]


_LAYOUTS = {1: ("time",), 2: ("arm", "time"), 3: ("block", "arm", "time"), 4: ("process", "block", "arm", "time")}


def _from_list(row: Any, unit: int, where: str) -> _Row:
    cells = row if isinstance(row, list) else [row]
    layout = _LAYOUTS.get(len(cells))
    if layout is None:
        raise FusionScopeError(f"{where}: a row is [process, block, arm, time], [block, arm, time] or a time.")
    named = dict(zip(layout, cells, strict=True))
    found: _Row = {"duration_ns": _time(named.pop("time"), unit, where)}
    for name, value in named.items():
        found[name] = whole_letters(str(value)) if name == "arm" else _id(value, where)
    return found


_TIME_COLUMN = re.compile(r"(?:.*[\s_(\[])?(ns|us|ms|s)[)\]]?", re.IGNORECASE)


def _from_fields(row: Any, where: str) -> _Row:
    """A row with names: one of them is the time and ends with its unit."""
    if not isinstance(row, dict):
        raise FusionScopeError(f"{where} tells no unit: --timings takes {_FORMS}.")
    named = {str(name).strip(): value for name, value in row.items() if name is not None}
    times = [(name, match.group(1).lower()) for name in named if (match := _TIME_COLUMN.fullmatch(name))]
    if len(times) != 1:
        found = " ".join(", ".join(named).split()) or "none"
        raise FusionScopeError(f"{where}: one column must be a time with its unit, such as time_us (found: {found}).")
    column, unit = times[0]
    result: _Row = {"duration_ns": _time(named[column], _UNITS[unit], where)}
    for name in _COLUMNS:
        if named.get(name) not in (None, ""):
            result[name] = whole_letters(str(named[name])) if name == "arm" else _id(named[name], where)
    return result


def _from_csv(text: str, path: Path) -> list[_Row]:
    try:
        reader = csv.DictReader(io.StringIO(text))
        return [_from_fields(row, f"{path}, line {reader.line_num}") for row in reader]
    except csv.Error as error:
        raise FusionScopeError(f"{path} is no CSV ({error}): --timings takes {_FORMS}.") from error
