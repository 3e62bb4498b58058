"""From what a format says to the tables: ranks, replays and doubts, the same for every AMD and Perfetto reader."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers.names import named_rank
from fusionscope.profiler.readers.ranks import FileRanks
from fusionscope.profiler.readers.replays import KEY, number_replays
from fusionscope.profiler.trace import Trace, table

#: Columns of `Found.device`; `name` is as the file has it, times are ns. `readable` may stand beside `name`.
DEVICE = ("process", "device", "stream", "kind", "name", "start_ns", "end_ns", "correlation")
CALLS = ("process", "thread", "name", "start_ns", "end_ns", "correlation")
RANGES = ("process", "thread", "name", "start_ns", "end_ns")


_OWN = ("__amd_rocclr_", "Marker", "<barrier packet>")


def _none(columns: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(dtype="object" if name in ("name", "kind") else "int64") for name in columns})


def frame(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> pd.DataFrame:
    """Rows as a frame of whole numbers and texts. Raises ValueError or TypeError for a value that is neither."""
    if not rows:
        return _none(columns)
    data = pd.DataFrame(list(rows), columns=list(columns), dtype="object")
    return data.astype({name: "int64" for name in columns if name not in ("name", "kind")})


@dataclass
class Found:
    """What one file says. `calls` are host calls of every kind: those that launch nothing are dropped here."""

    path: Path
    device: pd.DataFrame
    calls: pd.DataFrame = field(default_factory=lambda: _none(CALLS))
    ranges: pd.DataFrame = field(default_factory=lambda: _none(RANGES))
    machine: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    #: What to do for a whole trace: the end of a sentence.
    advice: str = "record again with `rocprofv3 --kernel-trace --hip-trace`"


def assemble(found: Found) -> Trace:
    """The tables. Raises UnreadableTrace where the file holds no GPU work."""
    device, warnings = found.device, list(found.warnings)
    calls = found.calls[_contains(found.calls["name"], "Launch")]
    calls = calls[~_contains(calls["name"], "HostFunc")].reset_index(drop=True)
    is_graph = _contains(calls["name"], "GraphLaunch")
    if not len(device):
        raise UnreadableTrace(_nothing(found, int(is_graph.sum()), len(calls)))
    rows = _device_rows(device, warnings)
    ranks = FileRanks(rows, max(named_rank(found.path), 0))
    if len(ranks.units) > 1:
        warnings.append(ranks.sentence())
    launches = table("launches", calls.assign(is_graph=is_graph, rank=ranks.of_calls(calls, rows)))
    launches = launches[launches["rank"] >= 0]
    named = rows.assign(rank=ranks.of(rows), raw_name=rows["name"], name=rows.get("readable", rows["name"]))
    kernels = table("kernels", named.drop(columns="readable", errors="ignore"))
    guessed = _guessed(kernels, launches, warnings)
    kernels["replay"], doubts = number_replays(kernels, pd.concat([launches, guessed]) if len(guessed) else launches)
    warnings += doubts + _missing(kernels, launches, found.advice) + _own_kernels(kernels)
    if "gpu" not in found.machine:
        warnings.append("The file does not name its GPU.")
    ranges = found.ranges.assign(rank=ranks.of_processes(found.ranges["process"]))
    return Trace(
        kernels=kernels.sort_values(["rank", "start_ns"], kind="stable").reset_index(drop=True),
        launches=launches.sort_values(["rank", "start_ns"], kind="stable").reset_index(drop=True),
        ranges=table("ranges", ranges[ranges["rank"] >= 0].sort_values(["rank", "start_ns"], kind="stable")),
        machine=found.machine,
        warnings=tuple(warnings),
    )


def _contains(names: pd.Series, part: str) -> NDArray[np.bool_]:
    """[rows] whether a name has a part; millions of rows have few names."""
    codes, known = pd.factorize(names)
    return np.array([*(part in str(name) for name in known), False])[codes]


def _device_rows(device: pd.DataFrame, warnings: list[str]) -> pd.DataFrame:
    duration = device["end_ns"] - device["start_ns"]
    start, end = device["start_ns"], device["end_ns"]
    untimed = (duration < 0) | (start < 0) | (end < 0) | ((start == 0) & (end == 0))
    if count := int(untimed.sum()):
        first = device[untimed].iloc[0]
        warnings.append(
            f"{count} of {len(device)} GPU records have no time (the first is {str(first['name'])[:60]!r}, from "
            f"{first['start_ns']} to {first['end_ns']}): the profiler did not collect it."
        )
    rows = device.drop(columns="end_ns").assign(duration_ns=duration.clip(lower=0).where(~untimed, 0), untimed=untimed)
    rows["start_ns"] = rows["start_ns"].where(~untimed, 0)
    return rows


def _guessed(kernels: pd.DataFrame, launches: pd.DataFrame, warnings: list[str]) -> pd.DataFrame:
    """Graph launches that no host call tells of: several kernels under one correlation id.

    A host call launches one kernel, or a graph: all of a replay carry the launch's id.
    """
    timed = kernels[(kernels["kind"] == "kernel") & (kernels["correlation"] > 0) & ~kernels["untimed"]]
    known = pd.MultiIndex.from_frame(launches[KEY])
    timed = timed[~pd.MultiIndex.from_frame(timed[KEY]).isin(known)]
    groups = timed.groupby(KEY)["start_ns"].agg(["size", "min"]).reset_index()
    groups = groups[groups["size"] > 1]
    if not len(groups):
        return groups
    least, most = groups["size"].min(), groups["size"].max()
    sizes = f"{least}" if least == most else f"{least} to {most}"
    warnings.append(
        f"The file has no host call for {len(groups)} groups of {sizes} "
        "kernels that share one correlation id: each counts as a graph replay. Record with --hip-trace to see the "
        "launches."
    )
    return groups.rename(columns={"min": "start_ns"})[[*KEY, "start_ns"]].assign(is_graph=True)


def _missing(kernels: pd.DataFrame, launches: pd.DataFrame, advice: str) -> list[str]:
    """Host launches whose kernels are not there: the profiler lost dispatches, or recorded only some processes."""
    alone = launches[~launches["is_graph"]]
    seen = pd.MultiIndex.from_frame(kernels[KEY])
    lost = int((~pd.MultiIndex.from_frame(alone[KEY]).isin(seen)).sum())
    if not lost:
        return []
    return [
        f"{lost} of {len(alone)} host launches have no kernel in the file: those made while a graph was captured "
        f"have none, the others are dispatches that the profiler lost ({advice})."
    ]


def _own_kernels(kernels: pd.DataFrame) -> list[str]:
    """HIP copies and fills with kernels of its own; whether a profiler shows these depends on where it listens."""
    own = kernels["raw_name"].cat.categories[kernels["raw_name"].cat.categories.astype(str).str.startswith(_OWN)]
    count = int(kernels["raw_name"].isin(own).sum())
    if not count:
        return []
    return [
        f"{count:,} of {len(kernels):,} launches are HIP's own copies and fills ({', '.join(map(str, own[:2]))}): "
        "other profilers may count these as copies or not at all, so compare counts of launches only within one "
        "profiler."
    ]


def _nothing(found: Found, graphs: int, calls: int) -> str:
    if graphs:
        return (
            f"{found.path} holds {graphs} graph launches and no kernel: whole graphs were recorded, or the kernels "
            f"stand in another file; nothing can be said of kernels, {found.advice}."
        )
    if calls:
        return f"{found.path} holds {calls} host launches and no kernel: {found.advice}."
    return f"{found.path} holds no GPU kernel: {found.advice}."
