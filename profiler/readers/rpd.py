"""RPD files (rocmProfileData, schema 2): every operation of rocpd_op, those of graphs included.

The file's own view of kernels joins them to the arguments of a launch, which a graph's operations do not have: of a
decode under graphs it shows nothing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionscope.profiler.readers.assemble import CALLS, DEVICE, RANGES, Found, assemble, frame
from fusionscope.profiler.readers.rows import category
from fusionscope.profiler.readers.sqlite_file import Database, reading
from fusionscope.profiler.trace import Trace

Ints = NDArray[np.int64]
ADVICE = "record again with runTracer.sh or rpdTracerControl"
_RANGE = "UserMarker"


def is_rpd(tables: set[str]) -> bool:
    """Whether these tables are those of an RPD file."""
    return {"rocpd_op", "rocpd_api", "rocpd_string"} <= tables


def read(path: str | Path) -> Trace:
    """The tables of one .rpd. Raises UnreadableTrace where it is damaged or a table lacks a column."""
    path = Path(path)
    with reading(path, "RPD file", ADVICE) as database:
        return assemble(_found(database))


def _found(database: Database) -> Found:
    strings = database.select("rocpd_string", ("id", "string"))
    texts = {int(key): str(text) for key, text in strings.itertuples(index=False) if text is not None}
    numbers = database.numbers
    api = pd.DataFrame(numbers("rocpd_api", ("id", "pid", "tid", "start", "end", "apiName_id"), ("args_id",)))
    links = pd.DataFrame(numbers("rocpd_api_ops", ("api_id", "op_id")))
    found = Found(database.path, frame(DEVICE, []), machine={"profiler": "RPD"}, advice=ADVICE)
    of_operation = ("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id")
    ops = pd.DataFrame(numbers("rocpd_op", of_operation))
    if len(ops):
        found.device = _device(ops, links, api, texts)
    called, code = np.unique(api["apiName_id"].to_numpy(), return_inverse=True)
    name = pd.Series(category([texts.get(key, "") for key in called.tolist()], code))
    host = pd.DataFrame(
        {
            "process": api["pid"],
            "thread": api["tid"],
            "name": name,
            "start_ns": api["start"],
            "end_ns": api["end"],
            "correlation": api["id"],
        }
    )
    marks = name == _RANGE
    found.calls = host.loc[~marks, list(CALLS)]
    found.ranges = host[marks].assign(name=api.loc[marks, "args_id"].map(texts).astype("object").fillna(""))[
        list(RANGES)
    ]
    if unlinked := int((found.device["correlation"] < 0).sum()):
        found.warnings.append(
            f"{unlinked} of {len(found.device)} operations have no host call in rocpd_api_ops: their graph is unknown."
        )
    return found


def _device(ops: pd.DataFrame, links: pd.DataFrame, api: pd.DataFrame, texts: dict[int, str]) -> pd.DataFrame:
    """Launches are "KernelExecution" (eager) and "Task" (inside a graph); the host call's row id joins them."""
    call = _looked_up(ops["id"].to_numpy(), links["op_id"].to_numpy(), links["api_id"].to_numpy())
    process = _looked_up(call, api["id"].to_numpy(), api["pid"].to_numpy())
    processes = api["pid"].unique()
    alone = int(processes[0]) if len(processes) == 1 else -1
    kinds, kind = np.unique(ops["opType_id"].to_numpy(), return_inverse=True)
    kind_texts = [texts.get(key, "") for key in kinds.tolist()]
    sorts = ["memcpy" if "Copy" in text else "memset" if "Fill" in text else "kernel" for text in kind_texts]
    described, description = np.unique(ops["description_id"].to_numpy(), return_inverse=True)
    # An operation without a description is named by its kind, so a name belongs to a pair.
    pairs, pair = np.unique(description * len(kinds) + kind, return_inverse=True)
    places = [divmod(both, len(kinds)) for both in pairs.tolist()]
    names = [texts.get(described[first].item(), "") or kind_texts[second] for first, second in places]
    return pd.DataFrame(
        {
            "process": np.where(process >= 0, process, alone),
            "device": ops["gpuId"],
            "stream": ops["queueId"],
            "kind": category(sorts, kind),
            "name": category(names, pair),
            "start_ns": ops["start"],
            "end_ns": ops["end"],
            "correlation": call,
        }
    )


def _looked_up(wanted: Ints, keys: Ints, values: Ints) -> Ints:
    """The value of the first row with each wanted key, -1 where none has it. Ids can be any int64."""
    if not len(keys):
        return np.full(len(wanted), -1, dtype=np.int64)
    known, first = np.unique(keys, return_index=True)
    places = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
    return np.where(known[places] == wanted, values[first[places]], -1)
