"""Which graph launch a kernel belongs to: the numbering that every reader shares."""

from __future__ import annotations

import pandas as pd

KEY = ["rank", "process", "correlation"]


def number_replays(kernels: pd.DataFrame, launches: pd.DataFrame) -> tuple[pd.Series[int], list[str]]:
    """The replay of every kernel row, and sentences about launches that do not fit.

    Correlation ids repeat between processes, so a launch is (rank, process, correlation). Launches are numbered from 0
    in the order of their start within one (rank, process). Kernels of a graph whose host call was not recorded form a
    replay that starts with the first of them. Eager rows get -1.
    """
    graph = _first_start(launches[launches["is_graph"]])
    known = pd.MultiIndex.from_frame(graph[KEY])
    keys = pd.MultiIndex.from_frame(kernels[KEY])
    orphans = kernels[(kernels["graph"] >= 0) & ~keys.isin(known)]
    # A record without a time starts at 0: it must not pull its replay to the front.
    orphans = orphans.assign(start_ns=orphans["start_ns"].where(~orphans["untimed"], 2**63 - 1))
    if len(orphans):
        graph = pd.concat([graph, _first_start(orphans)], ignore_index=True)
    graph = graph.sort_values(["rank", "process", "start_ns"], kind="stable")
    graph["replay"] = graph.groupby(["rank", "process"]).cumcount()
    joined = kernels[KEY].merge(graph[[*KEY, "replay"]], on=KEY, how="left")["replay"].fillna(-1).astype("int64")
    joined.index = kernels.index
    return joined, _doubts(known, keys)


def _first_start(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.groupby(KEY)["start_ns"].min().reset_index()


def _doubts(known: pd.MultiIndex, keys: pd.MultiIndex) -> list[str]:
    empty = int((~known.isin(keys)).sum())
    if not empty:
        return []
    return [
        f"{empty} of {len(known)} graph launches have no kernels in the trace: the recording is incomplete, "
        "record again with a larger buffer or a longer flush at the end."
    ]
