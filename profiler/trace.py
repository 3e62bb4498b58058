"""The tables everything else speaks: one schema for every profiler and every vendor.

All times are int64 nanoseconds on the trace's own clock. A missing id is -1, a missing text is "".
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import pandas_dtype

#: One row per execution on the device (on a CPU: one leaf operator).
#: `kind` is "kernel", "memcpy", "memset" or "op"; launches are "kernel" and "op" rows only.
#: `graph` is the executable graph's id, `node` the node's ordinal in it (-1: eager or unknown).
#: `replay` numbers the graph launches of one (rank, process) from 0 in the order of their start (-1: eager).
#: `correlation` joins to `launches` within one (rank, process). `thread` is the CPU thread of an "op" row, else -1.
#: `untimed`: the record exists but its time was not collected (start and end are 0).
KERNELS: dict[str, str] = {
    "rank": "int32",
    "process": "int64",
    "device": "int64",
    "stream": "int64",
    "thread": "int64",
    "kind": "category",
    "name": "category",
    "raw_name": "category",
    "start_ns": "int64",
    "duration_ns": "int64",
    "correlation": "int64",
    "graph": "int64",
    "node": "int64",
    "replay": "int64",
    "untimed": "bool",
}

#: One row per host call that launches device work (kernel launches and graph launches).
LAUNCHES: dict[str, str] = {
    "rank": "int32",
    "process": "int64",
    "thread": "int64",
    "name": "category",
    "start_ns": "int64",
    "end_ns": "int64",
    "correlation": "int64",
    "is_graph": "bool",
}

#: Host ranges: NVTX, roctx, record_function, user annotations.
RANGES: dict[str, str] = {
    "rank": "int32",
    "process": "int64",
    "thread": "int64",
    "name": "category",
    "start_ns": "int64",
    "end_ns": "int64",
}

#: Rung 1: one row per (site, node) of a captured graph. `site` numbers the sites of one boundary from 0;
#: `graph` is -1 for every graph, and -2, -3, … for graphs captured one after the other whose ids nobody knows;
#: `layer` is -1 where there is none; `path` is the path that the site really took, `declined` why not another.
SITES: dict[str, str] = {
    "rank": "int32",
    "graph": "int64",
    "boundary": "category",
    "subtype": "category",
    "site": "int64",
    "layer": "int64",
    "node": "int64",
    "path": "category",
    "declined": "category",
}

#: Edges of a captured graph, by node ordinal. `programmatic`: programmatic dependent launch.
EDGES: dict[str, str] = {
    "rank": "int32",
    "graph": "int64",
    "source": "int64",
    "target": "int64",
    "programmatic": "bool",
}

#: One row per timed replay. `source` is "untraced" (no profiler in the process), "graph-level trace"
#: (one row per replay, little overhead), "host latency" (wall clock) or "traced process".
TIMINGS: dict[str, str] = {
    "rank": "int32",
    "process": "int64",
    "block": "int64",
    "arm": "category",
    "duration_ns": "int64",
    "source": "category",
}

TABLES: dict[str, dict[str, str]] = {
    "kernels": KERNELS,
    "launches": LAUNCHES,
    "ranges": RANGES,
    "sites": SITES,
    "edges": EDGES,
    "timings": TIMINGS,
}

_DEFAULTS: dict[str, str | bool] = {"category": "", "bool": False}


def table(name: str, columns: dict[str, object] | pd.DataFrame | None = None) -> pd.DataFrame:
    """A table of the schema from columns; columns that are left out take the "missing" value.

    Raises KeyError for a table or column that the schema does not have.
    """
    schema = TABLES[name]
    data = pd.DataFrame(columns if columns is not None else {})
    unknown = set(data.columns) - set(schema)
    if unknown:
        raise KeyError(f"table {name} has no column {', '.join(sorted(unknown))}")
    there, made = set(data.columns), {}
    # Column by column: what has its type already is taken as it is, and nothing is inserted into a whole table.
    for column, dtype in schema.items():
        if column not in there:
            made[column] = _missing(dtype, len(data))
        elif data[column].dtype == dtype:
            made[column] = data[column].array
        else:
            made[column] = data[column].astype(pandas_dtype(dtype)).array
    return pd.DataFrame(made, index=pd.RangeIndex(len(data)))


def _missing(dtype: str, rows: int) -> Any:
    """So many times the "missing" value of a type."""
    value = _DEFAULTS.get(dtype, -1)
    if dtype == "category":
        return pd.Categorical.from_codes(np.zeros(rows, "int8"), pd.Index([value] if rows else [], dtype="str"))
    return np.full(rows, value, dtype)


@cache
def _made(name: str) -> pd.DataFrame:
    return table(name)


def _empty(name: str) -> pd.DataFrame:
    return _made(name).copy()


@dataclass(frozen=True)
class Trace:
    """What one file, or one run, holds. Tables follow the schemas above."""

    kernels: pd.DataFrame = field(default_factory=lambda: _empty("kernels"))
    launches: pd.DataFrame = field(default_factory=lambda: _empty("launches"))
    ranges: pd.DataFrame = field(default_factory=lambda: _empty("ranges"))
    sites: pd.DataFrame = field(default_factory=lambda: _empty("sites"))
    edges: pd.DataFrame = field(default_factory=lambda: _empty("edges"))
    timings: pd.DataFrame = field(default_factory=lambda: _empty("timings"))
    #: GPU name, library versions, …: what the file says of the machine, as text.
    machine: dict[str, str] = field(default_factory=dict)
    #: The tracer recorded whole graphs: there are no kernels to attribute.
    graph_mode: bool = False
    #: Full sentences about what is missing or doubtful in the file.
    warnings: tuple[str, ...] = ()
    #: World size that the file tells of, 0 where it does not.
    world_size: int = 0

    def with_rank(self, rank: int) -> Trace:
        """The same trace with every row given to one rank."""
        own = {name: getattr(self, name).assign(rank=rank).astype({"rank": "int32"}) for name in TABLES}
        return replace(self, **own)


def merge(traces: list[Trace]) -> Trace:
    """One trace from several ranks' traces. Ranks must differ; the caller has checked that."""
    tables = {}
    for name in TABLES:
        parts = [part for trace in traces if len(part := getattr(trace, name))]
        tables[name] = table(name, _concat(parts)) if parts else table(name)
    machine: dict[str, str] = {}
    for trace in reversed(traces):
        machine.update(trace.machine)
    return Trace(
        **tables,
        machine=machine,
        graph_mode=any(trace.graph_mode for trace in traces),
        warnings=tuple(dict.fromkeys(text for trace in traces for text in trace.warnings)),
        world_size=max((trace.world_size for trace in traces), default=0),
    )


def _concat(parts: list[pd.DataFrame]) -> pd.DataFrame:
    # Categories differ between ranks: as objects they concatenate, and table() makes one dictionary again.
    plain = [part.astype({c: "object" for c in part.columns if part[c].dtype == "category"}) for part in parts]
    return pd.concat(plain, ignore_index=True)
