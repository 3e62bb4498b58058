"""What the kernels of a trace, of any format, show to be doubtful."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from fusionscope.profiler.trace import Trace

#: A kernel did not really run so long that runs past so many starts on its own stream, for so many times what lies
#: before the first of them, and for at least so many ns. Under programmatic dependent launch the next one starts early.
_PAST, _TIMES, _LEAST = 2, 10, 1_000_000
_COLUMNS = ["rank", "process", "device", "stream", "graph", "replay", "name", "start_ns", "duration_ns"]


def with_doubts(trace: Trace) -> Trace:
    """The same trace with a warning for each kind of doubt. No row is changed: what the file says stays."""
    timed = trace.kernels.loc[(trace.kernels["kind"] == "kernel") & ~trace.kernels["untimed"], _COLUMNS]
    found = [*_too_long(timed), *_unequal(timed)]
    return replace(trace, warnings=(*trace.warnings, *found)) if found else trace


def _too_long(kernels: pd.DataFrame) -> list[str]:
    """Durations that run far past the following kernels of the same stream."""
    excess, rows, longest = 0, 0, 0
    first = ""
    for _, part in kernels.groupby(["rank", "device", "stream"], observed=True, sort=False):
        start, duration = part["start_ns"].to_numpy(), part["duration_ns"].to_numpy()
        if len(part) <= _PAST or int(duration.max()) < _LEAST:
            continue
        order = np.argsort(start, kind="stable")
        start, duration = start[order], duration[order]
        past = np.searchsorted(start, start + duration, side="left") - np.arange(len(start)) - 1
        # The last of a stream has no follower, which leaves its duration as it is.
        until = np.append(start[1:] - start[:-1], duration[-1])
        wrong = (past >= _PAST) & (duration >= _LEAST) & (duration >= _TIMES * until)
        if wrong.any():
            at = int(np.argmax(np.where(wrong, duration, -1)))
            if duration[at] > longest:
                longest, first = int(duration[at]), str(part["name"].iloc[order[at]])
            rows += int(wrong.sum())
            excess += int((duration - until)[wrong].sum())
    if not rows:
        return []
    total = int(kernels["duration_ns"].sum())
    return [
        f"{rows} of {len(kernels)} kernels run far past the start of the next ones on their stream (the longest is "
        f"{first[:60]!r}, {longest} ns), so their durations look corrupt: the sum of all is {total} ns as recorded and "
        f"{total - excess} ns with these cut at the next start; record again."
    ]


def _unequal(kernels: pd.DataFrame) -> list[str]:
    """Replays of one graph with unequal numbers of kernels: conditional nodes, or a recording that lost some."""
    inside = kernels[(kernels["replay"] >= 0) & (kernels["graph"] >= 0)]
    sizes = inside.groupby(["rank", "process", "graph", "replay"], observed=True).size()
    if not len(sizes):
        return []
    spans = sizes.groupby(["rank", "process", "graph"]).agg(["min", "max", "size"])
    unequal = spans[spans["min"] < spans["max"]]
    if not len(unequal):
        return []
    least, most, replays = (int(unequal[column].iloc[0]) for column in ("min", "max", "size"))
    return [
        f"{len(unequal)} of {len(spans)} graphs have replays of unequal length (the first: {least} to {most} kernels "
        f"in {replays} replays): the recording lost some, or the graph has conditional nodes, of which profilers show "
        "only the first turn."
    ]
