"""Which profiler recorded a trace: one run that two of them recorded is two runs."""

from __future__ import annotations

from collections.abc import Sequence

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.trace import Trace

#: What `--profiler` calls them, and what the readers say, which a version may follow.
RECORDERS = {
    "nsys": "Nsight Systems",
    "torch": "torch.profiler",
    "rocprofv3": "rocprofv3",
    "rocprof": "rocprof",
    "rpd": "RPD",
    "perfetto": "Perfetto",
}


def check_recorder(name: str) -> None:
    """Raises FusionScopeError where `--profiler` names none of them; "" is any."""
    if name and name not in RECORDERS:
        raise FusionScopeError(f"--profiler {name} is none whose traces are read: take {', '.join(RECORDERS)}.")


def recorder_of(trace: Trace) -> str:
    """The profiler's name in RECORDERS, "" where the trace does not tell."""
    said = trace.machine.get("profiler", "")
    return next((name for name, text in RECORDERS.items() if f"{said} ".startswith(f"{text} ")), "")


def places_of(recorder: str, names: Sequence[str], traces: Sequence[Trace]) -> list[int]:
    """Which of the traces a profiler recorded; `names` are their files'.

    Raises FusionScopeError where it recorded none.
    """
    by = [recorder_of(trace) for trace in traces]
    found = [place for place, one in enumerate(by) if one == recorder]
    if not found:
        said = ", ".join(f"{name} by {one or 'an unknown one'}" for name, one in zip(names, by, strict=True))
        raise FusionScopeError(f"No trace was recorded by --profiler {recorder} ({said}).")
    return found
