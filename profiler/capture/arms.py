"""Measuring two choices of paths of the built-in model in turn: the plan, and what a process tells of its blocks."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pandas as pd

from fusionscope.profiler.capture.clocks import Reading
from fusionscope.profiler.capture.plan import CapturePlan
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.trace import table

#: Key of a run's settings that says that it holds two measured arms, and how: "paths" or "commands".
SETTING = "ab"
#: Key of a run's settings that names the boundaries that were knocked out in it.
KNOCKOUT = "knockout"
EARLY = "The measurement was ended early: it holds the blocks that were finished."


#: The arm in which the nodes of a boundary are disabled is called so, with the boundary's name.
WITHOUT = "without "
#: What a disabled node costs, ns, and how many were disabled, in a head's facts.
DISABLED_NS, NODES = "disabled_node_ns", "nodes "
#: The base's time before there were copies of it, ns, in a head's facts.
ALONE_NS = "alone_ns"
#: In a head's facts: 1 where base and candidate launch the same kernels in the same order.
SAME_KERNELS = "same_kernels"
DID_NOT_FIRE = "The candidate did not fire: both arms launch the same kernels, so that any difference is noise."


class ArmsPlan(msgspec.Struct, kw_only=True, frozen=True):
    """`base` is the forward and the base's paths; the candidate differs in its paths alone.

    With `knockouts` (KIND or KIND:SUBTYPE) the arms are the base, and the base with the nodes of each disabled.
    """

    base: CapturePlan
    candidate: dict[str, str] = {}
    knockouts: list[str] = []
    blocks: int = 12
    replays: int = 5
    #: Captures of each arm in a process, each with its buffers elsewhere.
    captures: int = 4
    #: Stop starting blocks after so long in a process; 0 for no limit.
    seconds: float = 0.0

    @property
    def processes(self) -> int:
        """How many worker processes run at once (ranks)."""
        return self.base.processes


class Head(msgspec.Struct, kw_only=True, tag="head"):
    """What a process says before its first block."""

    process: int
    nodes: dict[str, int]
    #: Sites of the candidate at which its path stepped back: "mhc_post:ffn_exit layer 3: triton: reason".
    declines: list[str] = []
    machine: dict[str, str] = {}
    #: Numbers that were measured beside the blocks.
    facts: dict[str, float] = {}
    layers: int = 0
    scaled: bool = False
    truncated: bool = False


class Block(msgspec.Struct, kw_only=True, tag="block"):
    """One whole block: (arm, ns) of each replay in the order in which they were taken."""

    block: int
    rows: list[tuple[str, int]]
    clocks: Reading


_LINE = msgspec.json.Decoder(Head | Block)


def lines_path(folder: Path, process: int, rank: int) -> Path:
    """Where a rank of the k-th process leaves its lines."""
    return folder / f"process{process}.rank{rank}.jsonl"


def write_plan(plan: ArmsPlan, path: Path) -> None:
    """Write a plan for the workers."""
    path.write_bytes(msgspec.json.encode(plan))


def read_plan(path: Path) -> ArmsPlan:
    """The plan that `write_plan` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=ArmsPlan)


def append(path: Path, what: Head | Block) -> None:
    """Add a line; what was written stays whatever happens next."""
    with path.open("ab") as file:
        file.write(msgspec.json.encode(what) + b"\n")


def read_lines(path: Path) -> tuple[Head | None, list[Block]]:
    """The head and the whole blocks of a file; a line that was cut off is left out."""
    head: Head | None = None
    blocks: list[Block] = []
    if not path.is_file():
        return None, []
    for line in path.read_bytes().splitlines():
        try:
            what = _LINE.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(what, Head):
            head = what
        else:
            blocks.append(what)
    return head, blocks


def timing_table(folder: Path, processes: int, rank: int = 0) -> tuple[pd.DataFrame, list[Head], list[Reading]]:
    """TIMINGS of every finished block of every process, with the processes' heads and the clocks that were read.

    Raises FusionScopeError where no block was finished.
    """
    parts, heads, readings = [], [], []
    for process in range(processes):
        head, blocks = read_lines(lines_path(folder, process, rank))
        if head is None or not blocks:
            continue
        heads.append(head)
        readings += [block.clocks for block in blocks]
        rows = [(block.block, arm, ns) for block in blocks for arm, ns in block.rows]
        data = pd.DataFrame(rows, columns=["block", "arm", "duration_ns"])
        # A process id can come again, and the blocks of two processes must not be taken for one's.
        taken = {other.process for other in heads[:-1]}
        number = head.process if head.process not in taken else max(taken) + 1
        head.process = number
        parts.append(data.assign(rank=rank, process=number, source="untraced"))
    if not parts:
        raise FusionScopeError("No block was finished, so nothing was measured: give it more time.")
    return table("timings", pd.concat(parts, ignore_index=True)), heads, readings
