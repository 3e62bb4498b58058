"""What of an all-reduce is waiting for the other ranks, which no fusion removes.

The shortest duration of an occurrence over the ranks is its transfer (no common clock is needed for that); the rest
is wait.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fusionscope.analysis.forwards import Forward, forwards, most_like
from fusionscope.profiler.store import Run

#: Roles of launches in which ranks meet.
MEETING = (
    "all_reduce",
    "fused_ar_norm",
    "fused_ar_mhc_post",
    "fused_ar_mhc_post_pre",
    "fused_finalize_ar_norm",
    "fused_finalize_ar_mhc_post",
)


def wait_ns(run: Run, forward: Forward, roles: list[str]) -> NDArray[np.int64] | None:
    """[R, n] ns of wait in each launch of the forward; None where it cannot be known.

    That is with one rank in the run, or where the ranks do not have the same number of meetings and replays.
    """
    ranks = sorted(int(r) for r in run.trace.kernels["rank"].unique())
    if len(ranks) < 2 or forward.replays == 0:
        return None
    met = [c for c, role in enumerate(roles) if role in MEETING]
    shortest = forward.duration[:, met]
    names = forward.nodes["name"].astype(str).to_numpy()[met].tolist()
    for rank in ranks:
        if rank == forward.rank:
            continue
        other = _meetings(run, rank, forward, set(names))
        if other is None or other.shape != shortest.shape:
            return None
        shortest = np.minimum(shortest, other)
    wait = np.zeros_like(forward.duration)
    wait[:, met] = forward.duration[:, met] - shortest
    return wait


def _meetings(run: Run, rank: int, forward: Forward, names: set[str]) -> NDArray[np.int64] | None:
    """[R, meetings] durations of the kernels in which another rank meets this one, in order."""
    found = forwards(run.trace, rank, run.info.warmup_replays)
    if not found:
        return None
    # A rank can have several kinds of forward: the one that meets ours is the same program.
    theirs = most_like(found, forward)
    there = theirs.nodes["name"].astype(str).isin(names).to_numpy()
    return theirs.duration[:, there]
