"""What a worker process leaves in the capture's folder, and what it says while it works."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

#: A line of a worker's output that starts so is for the progress bar: done, total and what, separated by tabs.
PROGRESS = "@fusionscope-progress\t"


class SiteNote(msgspec.Struct, kw_only=True):
    """One site as its recorder saw it; nodes are half-open, -1 where no graph was captured."""

    boundary: str
    subtype: str
    layer: int
    path: str
    declined: str = ""
    first_node: int = -1
    last_node: int = -1


class Timing(msgspec.Struct, kw_only=True):
    """One timed replay (`source` as in the table TIMINGS)."""

    block: int
    duration_ns: int
    source: str


class Report(msgspec.Struct, kw_only=True):
    """What one rank did in one phase."""

    rank: int
    process: int
    timings: list[Timing] = []
    sites: list[SiteNote] = []
    #: (source, target, programmatic), by node ordinal.
    edges: list[tuple[int, int, bool]] = []
    #: Nodes of the captured graph, 0 on a CPU.
    nodes: int = 0
    machine: dict[str, str] = {}
    #: Shapes were scaled, or layers left out.
    scaled: bool = False
    truncated: bool = False
    layers: int = 0
    warnings: list[str] = []


class Failure(msgspec.Struct, kw_only=True):
    """A sentence for the user, from a worker that cannot go on.

    `expected`: the sentence names the user's next step. Else it tells of a fault, which may be the echo of
    another rank's end.
    """

    rank: int
    message: str
    expected: bool


def report_path(folder: Path, phase: str, rank: int) -> Path:
    """Where a rank leaves its report of a phase."""
    return folder / f"{phase}.rank{rank}.report.json"


def failure_path(folder: Path, rank: int) -> Path:
    """Where a rank leaves the sentence that says why it stopped."""
    return folder / f"rank{rank}.failure.json"


def leave(message: Report | Failure, path: Path) -> None:
    """Write a message whole or not at all."""
    temporary = path.with_suffix(".part")
    temporary.write_bytes(msgspec.json.encode(message))
    os.replace(temporary, path)


def read_report(path: Path) -> Report:
    """The report that a rank left."""
    return msgspec.json.decode(path.read_bytes(), type=Report)


def read_failures(folder: Path) -> list[Failure]:
    """The sentences of the ranks that stopped, in the order in which they did."""
    paths = sorted(folder.glob("rank*.failure.json"), key=lambda path: path.stat().st_mtime_ns)
    return [msgspec.json.decode(path.read_bytes(), type=Failure) for path in paths]


def say(done: int, total: int, what: str) -> None:
    """Tell the launching process how far this one is."""
    print(f"{PROGRESS}{done}\t{total}\t{what}", flush=True)


def parse(line: str) -> tuple[int, int, str] | None:
    """Done, total and what of a progress line; None for any other line."""
    at = line.find(PROGRESS)
    if at < 0:
        return None
    done, total, what = line[at + len(PROGRESS) :].rstrip("\n").split("\t", 2)
    return int(done), int(total), what
