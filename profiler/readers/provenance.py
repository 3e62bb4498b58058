"""Graph-node provenance (rung 1): which nodes of a captured graph belong to which site, from a *.nodes.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.trace import table

_RANGES = "node_index_ranges_half_open"
_FORM = f'{{"boundary": "ar_norm", "kind": "split", "{_RANGES}": [[3, 5], …]}}, or a list of such objects'


def read_provenance(path: str | Path) -> pd.DataFrame:
    """SITES rows (rank -1: every rank; the importer gives them to ranks) of one file.

    An entry names a boundary and the half-open ranges of node ordinals of its sites in order. `kind` or `path` is the
    path taken; optional are `subtype`, `layer` (one number, or one per range), `graph` (-1: every graph), `rank` and
    `declined`. Sites of one boundary are numbered from 0 over the whole file. Raises FusionScopeError for another form.
    """
    path = Path(path)
    try:
        data = json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise FusionScopeError(
            f"{path} cannot be opened ({error.strerror}): give the *.nodes.json that the capture wrote."
        ) from error
    except (ValueError, RecursionError) as error:
        raise FusionScopeError(f"{path} is no JSON ({error}): provenance is {_FORM}.") from error
    entries = data if isinstance(data, list) else [data]
    if not entries:
        raise FusionScopeError(f"{path} holds no sites: provenance is {_FORM}.")
    counts: dict[tuple[int, int, str], int] = {}
    rows: list[dict[str, Any]] = []
    for number, entry in enumerate(entries):
        rows += _sites(entry, f"{path}, entry {number}", counts)
    columns: dict[str, object] = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    return table("sites", columns)


def _sites(entry: Any, where: str, counts: dict[tuple[int, int, str], int]) -> list[dict[str, Any]]:
    if not isinstance(entry, dict) or not isinstance(entry.get("boundary"), str) or not entry["boundary"]:
        raise FusionScopeError(f"{where} names no boundary: provenance is {_FORM}.")
    ranges = entry.get(_RANGES)
    if not isinstance(ranges, list):
        raise FusionScopeError(f"{where} has no list {_RANGES}: provenance is {_FORM}.")
    texts = {key: entry.get(key, "") for key in ("subtype", "declined")}
    texts["path"] = entry.get("path", entry.get("kind", ""))
    if wrong := [key for key, value in texts.items() if not isinstance(value, str)]:
        raise FusionScopeError(f"{where}: {wrong[0]} must be a text: provenance is {_FORM}.")
    rank, graph = (_number(entry.get(key, -1), f"{where}: {key}") for key in ("rank", "graph"))
    layers = entry.get("layer", -1)
    if not isinstance(layers, list):
        layers = [layers] * len(ranges)
    if len(layers) != len(ranges):
        raise FusionScopeError(f"{where} has {len(layers)} layers for {len(ranges)} ranges: give one, or one each.")
    key = (rank, graph, entry["boundary"])
    rows = []
    for span, layer in zip(ranges, layers, strict=True):
        first, last = _span(span, where)
        common = {"rank": rank, "graph": graph, "boundary": entry["boundary"], **texts}
        common |= {"site": counts.setdefault(key, 0), "layer": _number(layer, f"{where}: layer")}
        rows += [{**common, "node": node} for node in range(first, last)]
        counts[key] += 1
    return rows


def _number(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < 2**31:
        raise FusionScopeError(f"{what} must be a whole number, -1 where there is none, not {value!r}.")
    return value


def _span(span: Any, where: str) -> tuple[int, int]:
    numbers = isinstance(span, list) and len(span) == 2 and all(type(n) is int for n in span)
    # No graph has ten million nodes: a longer range is a mistake that would fill the memory.
    if not numbers or not 0 <= span[0] < span[1] or span[1] - span[0] > 10_000_000:
        raise FusionScopeError(f"{where}: {span!r} is no half-open range of node ordinals such as [3, 5].")
    return span[0], span[1]
