"""What a fused site takes at least: one launch, its bytes over the memory's bandwidth, its sum over the links.

A floor that cannot be known is named, not guessed. The floor says what no kernel can beat, not what one will reach:
the latency of a link and of a cold cache come on top.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

import numpy as np

from fusionscope.analysis.target import Target
from fusionscope.profiler.runinfo import MEMORY_GBPS, RunInfo

#: (name, memory TB/s, links GB/s in one direction): what the vendors publish, so no measured rate exceeds it.
GPUS: tuple[tuple[str, float, float], ...] = (
    ("H200", 4.8, 450),
    ("H100", 3.35, 450),
    ("H20", 4.0, 450),
    ("GB200", 8.0, 900),
    ("GB300", 8.0, 900),
    ("B200", 8.0, 900),
    ("B300", 8.0, 900),
    ("A100", 2.04, 300),
    ("MI300X", 5.3, 448),
    ("MI325X", 6.0, 448),
    ("MI350X", 8.0, 538),
    ("MI355X", 8.0, 538),
)
#: (name in lower case without signs, hidden width, residual streams, experts per token), from the models' config
#: classes in transformers 5.24 and SGLang 0.5.23. Longer names first, since a name is looked for inside the run's.
MODELS: tuple[tuple[str, int, int, int], ...] = (
    ("glm53flash", 4096, 4, 8),
    ("glm47flash", 2048, 1, 4),
    ("glm52", 6144, 1, 8),
    ("glm51", 6144, 1, 8),
    ("deepseekv4flash", 4096, 4, 6),
    ("deepseekv3", 7168, 1, 8),
)
#: Bytes of an element of the activations: bf16 and fp16.
ELEMENT = 2


@dataclass(frozen=True)
class Shape:
    """What is known of the rows that pass a site; 0 or None is unknown."""

    tokens: int = 0
    hidden: int = 0
    tp: int = 0
    streams: int = 1
    top_k: int = 0
    #: Bytes that a site reads and writes, where the user says so.
    site_bytes: int = 0
    memory_bytes_per_ns: float | None = None
    #: "given", "measured" beside the capture, or "published".
    memory_from: str = "given"
    link_bytes_per_ns: float | None = None
    emulated: bool = False


@dataclass(frozen=True)
class Floors:
    """Least times of one site, ns; None is unknown, and `unknown` says which and what would tell."""

    launch_ns: float
    bytes_ns: float | None
    #: 0 where no all-reduce lies in the sites.
    reduce_ns: float | None
    unknown: tuple[str, ...]
    #: Memory bandwidth behind `bytes_ns`, GB/s, and where it is from.
    memory_gbps: float | None = None
    memory_from: str = ""

    @property
    def floor_ns(self) -> float:
        """The highest floor that is known."""
        return max(v for v in (self.launch_ns, self.bytes_ns, self.reduce_ns) if v is not None)


def shape_of(info: RunInfo, gpu: str = "", **given: float | int | None) -> Shape:
    """The shape from a run's own record, and what the user gives instead (fields of Shape; None is not given)."""
    name = re.sub(r"[^a-z0-9]", "", info.model.lower())
    known = next((m for m in MODELS if m[0] in name), None) if "scaled shapes" not in info.labels else None
    rates = next((g for g in GPUS if re.search(rf"\b{g[0]}\b", gpu or info.machine.get("gpu", ""))), None)
    # 1 TB/s is 1,000 bytes a nanosecond, 1 GB/s is one.
    memory, source = rates[1] * 1000 if rates else None, "published"
    with contextlib.suppress(KeyError, ValueError):
        memory, source = _positive(info.machine[MEMORY_GBPS]), "measured"
    values: dict[str, float | int | bool | str | None] = {
        "tokens": max(info.batch, 0),
        "hidden": known[1] if known else 0,
        "tp": max(info.tp, 0),
        "streams": known[2] if known else 1,
        "top_k": known[3] if known else 0,
        "memory_bytes_per_ns": memory,
        "memory_from": source if given.get("memory_bytes_per_ns") is None else "given",
        "link_bytes_per_ns": rates[2] if rates else None,
        "emulated": info.emulated_ranks,
    }
    values |= {name: value for name, value in given.items() if value is not None}
    return Shape(**values)  # type: ignore[arg-type]


def _positive(text: str) -> float:
    """A number above 0. Raises ValueError for anything else."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(text)
    return value


def floors(found: Target, shape: Shape) -> Floors:
    """The floors of one site of a target."""
    forward = found.forward
    launch = float(np.median(forward.duration.min(axis=1))) if forward.launches else 0.0
    unknown: list[str] = []
    row = shape.tokens * shape.hidden * ELEMENT
    moved = shape.site_bytes or _bytes(found.boundary, row, shape)
    in_bytes = None
    if not moved:
        unknown.append("bytes (give --site-bytes, or --tokens and --hidden)")
    elif shape.memory_bytes_per_ns is None:
        unknown.append("memory bandwidth (give --bandwidth-gbps)")
    else:
        in_bytes = moved / shape.memory_bytes_per_ns
    reduce = _reduce(found, row, shape, unknown)
    if in_bytes is None:
        return Floors(launch, None, reduce, tuple(unknown))
    return Floors(launch, in_bytes, reduce, tuple(unknown), shape.memory_bytes_per_ns, shape.memory_from)


def _bytes(boundary: str, row: int, shape: Shape) -> int:
    """Bytes that one site reads and writes at least, 0 where the kind is not known."""
    known = {
        # Partial sum and residual in, residual and normed row out.
        "ar_norm": 4 * row,
        "add_norm": 4 * row,
        # Partial sum in, every stream in and out.
        "mhc_post": (1 + 2 * shape.streams) * row,
        # The same, the read's projection (2 + streams) * streams rows wide in float32, and the read's input out.
        "mhc_post_pre": (2 + 2 * shape.streams) * row
        + (2 + shape.streams) * shape.streams * shape.streams * shape.hidden * 4,
    }
    if boundary == "moe_finalize":
        # The experts' rows in, then what follows: streams where there are several, else residual and norm.
        rest = 2 * shape.streams if shape.streams > 1 else 3
        return (shape.top_k + rest) * row if shape.top_k else 0
    return known.get(boundary, 0)


def _reduce(found: Target, row: int, shape: Shape, unknown: list[str]) -> float | None:
    from fusionscope.analysis.waiting import MEETING

    if not any(found.attribution.roles[c] in MEETING for c in found.columns):
        return 0.0
    if shape.emulated:
        unknown.append("all-reduce (the ranks are emulated on one GPU, so no link is crossed)")
    elif shape.tp < 2 or not row:
        unknown.append("all-reduce (give --tp and --hidden; --tokens where the run does not know its batch)")
    elif shape.link_bytes_per_ns is None:
        unknown.append("all-reduce (give --link-gbps)")
    else:
        # Without a switch that adds, a rank sends and receives this much in any algorithm.
        return 2 * (shape.tp - 1) / shape.tp * row / shape.link_bytes_per_ns
    return None
