"""Which file is which rank of a run, and which ranks no file has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.readers.names import named_rank
from fusionscope.profiler.recorders import recorder_of
from fusionscope.profiler.trace import Trace

#: A sentence that names more gaps than this helps nobody.
_MOST_SPANS = 20


def ranks_of(trace: Trace) -> list[int]:
    """The ranks that have work in a trace; graph mode has replay times instead of kernels."""
    rows = trace.kernels if len(trace.kernels) else trace.timings
    return sorted(int(rank) for rank in rows["rank"].unique())


def numbered(paths: Sequence[Path], traces: Sequence[Trace]) -> list[Trace]:
    """The traces, no two of one rank.

    Files that do not tell their ranks are numbered by device, where each has its own; a warning says which is which.
    Raises FusionScopeError where two files claim one rank.
    """
    found = list(traces)
    devices = [trace.kernels["device"].unique() for trace in traces]
    untold = all(not _tells(path, trace) for path, trace in zip(paths, traces, strict=True))
    if len(traces) > 1 and untold and len({int(d[0]) for d in devices}) == len(traces):
        order = sorted(range(len(traces)), key=lambda i: int(devices[i][0]))
        said = ", ".join(f"rank {rank} is {paths[i].name} (device {devices[i][0]})" for rank, i in enumerate(order))
        note = f"The files do not tell their ranks and were numbered by device: {said}."
        for rank, i in enumerate(order):
            found[i] = _noted(traces[i].with_rank(rank), note)
    owner: dict[int, int] = {}
    for place, trace in enumerate(found):
        for rank in ranks_of(trace):
            if rank in owner:
                raise _both_claim(rank, [(paths[i], found[i]) for i in (owner[rank], place)])
            owner[rank] = place
    return found


def missing(ranks: Sequence[int], world_size: int) -> list[str]:
    """A sentence about the ranks of a run that no file has, if there are some."""
    size = max(world_size, max(ranks, default=-1) + 1)
    # Gaps, not ranks: a damaged file can tell of a world of any size.
    known_ranks = sorted(set(ranks))
    lacking = [
        (before + 1, rank - 1)
        for before, rank in zip([-1, *known_ranks], [*known_ranks, size], strict=True)
        if rank - before > 1
    ]
    if not lacking or not ranks:
        return []
    known = "" if world_size else "at least "
    noun, verb = ("Rank", "is") if size - len(known_ranks) == 1 else ("Ranks", "are")
    return [
        f"{noun} {_spans(lacking)} of {known}{size} {verb} missing: numbers of one rank hold, an all-reduce includes "
        "an unknown wait, and numbers across ranks are refused; import the files of all ranks together."
    ]


def _both_claim(rank: int, both: Sequence[tuple[Path, Trace]]) -> FusionScopeError:
    (first, _), (second, _) = both
    by = [recorder_of(trace) for _, trace in both]
    if all(by) and by[0] != by[1]:
        return FusionScopeError(
            f"{first} and {second} both claim rank {rank}: {by[0]} recorded the first, {by[1]} the second, and a run "
            f"is one recording. Choose it with --profiler {by[0]} or --profiler {by[1]}; the other "
            "can be a run of its own."
        )
    return FusionScopeError(
        f"{first} and {second} both claim rank {rank}: import one file per rank of one run, or put the rank into the "
        "names (…rank0…, …rank1…)."
    )


def _tells(path: Path, trace: Trace) -> bool:
    """Whether a file says its rank: in its name, in what it holds, or by holding several."""
    single = len(ranks_of(trace)) == 1 and trace.kernels["device"].nunique() == 1
    return not single or trace.world_size > 0 or named_rank(path) >= 0


def _noted(trace: Trace, note: str) -> Trace:
    return replace(trace, warnings=(*trace.warnings, note))


def _spans(spans: Sequence[tuple[int, int]]) -> str:
    """1, 2, 4 to 6."""
    joins = {0: "{0}", 1: "{0}, {1}"}
    told = [joins.get(last - first, "{0} to {1}").format(first, last) for first, last in spans[:_MOST_SPANS]]
    return ", ".join(told) + (f" and {len(spans) - _MOST_SPANS} more" if len(spans) > _MOST_SPANS else "")
