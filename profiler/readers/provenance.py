"""Graph-node provenance (rung 1): which nodes of a captured graph belong to which site, from a *.nodes.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.readers.json_stream import whole_letters
from fusionscope.profiler.trace import table

_RANGES = "node_index_ranges_half_open"
#: How a log of marks begins, which `fusion_runtime.marks` writes.
_LOG = '{"fusionscope_marks"'
#: A range can be a mistake that would fill the memory: 500 graphs of 2,000 nodes on 2 ranks are no more.
_MOST_NODES = 2_000_000
#: What the nodes of a site have in common, the first of them and the one behind the last.
_Span = tuple[dict[str, Any], int, int]
_FORM = f'{{"boundary": "ar_norm", "kind": "split", "{_RANGES}": [[3, 5], …]}}, or a list of such objects'


def read_provenance(path: str | Path) -> pd.DataFrame:
    """SITES rows (rank -1: every rank; the importer gives them to ranks) of one file.

    An entry names a boundary and the half-open ranges of node ordinals of its sites in order. `kind` or `path` is the
    path taken; optional are `subtype`, `layer` and `site` (one number, or one per range), `graph` (-1: every graph),
    `capture` (graphs that were captured one after the other, from 0, where their ids are not known), `rank` and
    `declined`. Sites of one boundary are numbered from 0 over the whole file unless they say their number. A log that
    `fusionscope.fusion_runtime.boundary` left is read as well. Raises FusionScopeError for another form.
    """
    path = Path(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
        data = _log(text) if text.startswith(_LOG) else json.loads(text)
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
    spans: list[_Span] = []
    for number, entry in enumerate(entries):
        spans += _sites(entry, f"{path}, entry {number}", counts)
    sizes = [last - first for _, first, last in spans]
    if sum(sizes) > _MOST_NODES:
        raise FusionScopeError(
            f"{path} names {sum(sizes)} nodes, more than all graphs of a run have: provenance is {_FORM}."
        )
    columns: dict[str, object] = {}
    for name in spans[0][0] if spans else ():
        columns[name] = np.array([common[name] for common, _, _ in spans], dtype="object").repeat(sizes)
    if spans:
        columns["node"] = np.concatenate([np.arange(first, last) for _, first, last in spans])
    return table("sites", columns)


def _log(text: str) -> list[dict[str, Any]]:
    """The entries of a log of marks; the last line of a killed process may be half."""
    head, *lines = text.splitlines()
    rank = json.loads(head).get("rank", -1)
    entries = []
    for number, line in enumerate(lines):
        try:
            mark = json.loads(line)
        except ValueError:
            if number == len(lines) - 1:
                break
            raise
        if not isinstance(mark, dict):
            raise ValueError(f"line {number + 2} is no mark")
        span = [mark.pop("first", None), mark.pop("last", None)]
        entries.append({**mark, "rank": rank, _RANGES: [span]})
    return entries


def _sites(entry: Any, where: str, counts: dict[tuple[int, int, str], int]) -> list[_Span]:
    if not isinstance(entry, dict) or not isinstance(entry.get("boundary"), str) or not entry["boundary"]:
        raise FusionScopeError(f"{where} names no boundary: provenance is {_FORM}.")
    ranges = entry.get(_RANGES)
    if not isinstance(ranges, list):
        raise FusionScopeError(f"{where} has no list {_RANGES}: provenance is {_FORM}.")
    texts = {key: entry.get(key, "") for key in ("subtype", "declined")}
    texts["path"] = entry.get("path", entry.get("kind", ""))
    if wrong := [key for key, value in texts.items() if not isinstance(value, str)]:
        raise FusionScopeError(f"{where}: {wrong[0]} must be a text: provenance is {_FORM}.")
    texts = {key: whole_letters(value) for key, value in texts.items()}
    boundary = whole_letters(entry["boundary"])
    rank, graph = (_number(entry.get(key, -1), f"{where}: {key}") for key in ("rank", "graph"))
    capture = _number(entry.get("capture", -1), f"{where}: capture")
    if capture >= 0:
        graph = -2 - capture
    layers, numbers = (_each(entry.get(key, -1), len(ranges), f"{where}: {key}") for key in ("layer", "site"))
    key = (rank, graph, boundary)
    rows: list[_Span] = []
    for span, layer, number in zip(ranges, layers, numbers, strict=True):
        first, last = _span(span, where)
        common = {"rank": rank, "graph": graph, "boundary": boundary, **texts}
        common |= {"site": counts.setdefault(key, 0) if number < 0 else number, "layer": layer}
        rows.append((common, first, last))
        counts[key] = counts.get(key, 0) + 1
    return rows


def _each(value: Any, count: int, what: str) -> list[int]:
    """One number for every range, or one each."""
    values = value if isinstance(value, list) else [value] * count
    if len(values) != count:
        raise FusionScopeError(f"{what} has {len(values)} numbers for {count} ranges: give one, or one each.")
    return [_number(one, what) for one in values]


def _number(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value < 2**31:
        raise FusionScopeError(f"{what} must be a whole number, -1 where there is none, not {value!r}.")
    return value


def _span(span: Any, where: str) -> tuple[int, int]:
    numbers = isinstance(span, list) and len(span) == 2 and all(type(n) is int for n in span)
    if not numbers or not 0 <= span[0] < span[1] < 2**31:
        raise FusionScopeError(f"{where}: {span!r} is no half-open range of node ordinals such as [3, 5].")
    return span[0], span[1]
