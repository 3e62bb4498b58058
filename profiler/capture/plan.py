"""What to capture: the plan that the command writes and every worker process reads."""

from __future__ import annotations

from pathlib import Path

import msgspec

from fusionscope.profiler.errors import FusionScopeError

DEVICES = ("auto", "cuda", "cpu")
PROFILERS = ("auto", "nsys", "cupti", "rocprofv3", "torch")
#: Replays that each traced process does before those that count: the first after instantiation is slower.
WARMUP_REPLAYS = 1


class CaptureError(FusionScopeError):
    """The capture could not be done; nothing was stored."""


class CapturePlan(msgspec.Struct, kw_only=True, frozen=True):
    """One capture. Every choice is made: no "auto" is left in a plan that reaches a worker."""

    model: str
    tp: int
    batch: int
    context: int
    device: str
    profiler: str
    #: Boundary, or boundary:subtype, to path; what is not named takes `split`.
    paths: dict[str, str] = {}
    #: The first layers only; 0 for all of them.
    layers: int = 0
    #: Traced replays that count; WARMUP_REPLAYS more are recorded before them.
    replays: int = 12
    #: Blocks of untraced replays, and how many replays are timed in each.
    timed_blocks: int = 6
    timed_replays: int = 10
    #: Under nsys: trace the same replays once more as whole graphs, to know what tracing node by node adds.
    graph_pass: bool = False
    #: One process plays rank 0 beside peers that are not there.
    emulated: bool = False
    seed: int = 0

    @property
    def processes(self) -> int:
        """How many worker processes run."""
        return 1 if self.emulated else self.tp


def write(plan: CapturePlan, path: Path) -> None:
    """Write a plan for the workers."""
    path.write_bytes(msgspec.json.encode(plan))


def read(path: Path) -> CapturePlan:
    """The plan that `write` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=CapturePlan)
