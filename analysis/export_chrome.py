"""Tracks as the JSON that chrome://tracing and other viewers read (Trace Event Format)."""

from __future__ import annotations

from fusionscope.analysis.tracks import RankTracks


def chrome(ranks: list[RankTracks]) -> dict[str, object]:
    """The document: a process a rank, a thread a track; times in us since the rank's first launch."""
    events: list[dict[str, object]] = []
    for rank in ranks:
        pid = rank.rank
        title = f"rank {rank.rank}: {rank.title}"
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": title}})
        for tid, track in enumerate(rank.tracks):
            events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": track.name}})
            events.append({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}})
            events += [
                {"ph": "X", "name": one.name, "cat": track.kind, "pid": pid, "tid": tid, "ts": one.start_ns / 1000,
                 "dur": one.duration_ns / 1000, "args": {k: v for k, v in one.facts.items() if v not in ("", -1)}}
                for one in track.slices
            ]  # fmt: skip
    return {"displayTimeUnit": "ns", "traceEvents": events}
