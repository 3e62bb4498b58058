"""Records every boundary site of a forward: which path it took, and which graph nodes it added.

While a CUDA or HIP graph is being captured, the node count before and after a site brackets its nodes: exact
provenance.
Otherwise a profiler range is opened, which is how sites are found in a CPU trace.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from fusionscope.fusion_runtime import graph_nodes
from fusionscope.fusion_runtime.marks import PREFIX as SITE_PREFIX

FORWARD_RANGE = "fusionscope.forward"


@dataclass
class SiteRow:
    """One site. first_node and last_node are a half-open range of graph nodes, (-1, -1) where nothing was captured.

    `declined` is empty, or "path: reason" of the path that was asked for and stepped back.
    """

    boundary: str
    subtype: str
    layer: int
    path: str
    declined: str = ""
    first_node: int = -1
    last_node: int = -1


class SiteRecorder:
    """`rows` in the order in which sites were opened; `start()` begins a new forward."""

    def __init__(self) -> None:
        self.rows: list[SiteRow] = []

    def start(self) -> None:
        """Forgets the rows of the forward before."""
        self.rows = []

    @contextmanager
    def site(self, boundary: str, subtype: str, layer: int, path: str, declined: str = "") -> Iterator[SiteRow]:
        """Brackets one site; sites may nest (moe_finalize contains its mhc_post)."""
        row = SiteRow(boundary, subtype, layer, path, declined)
        self.rows.append(row)
        if torch.compiler.is_compiling():
            # Traced code is neither captured now nor profiled by range: the row says what was chosen.
            yield row
            return
        first = captured_nodes()
        if first is not None:
            row.first_node = first
            yield row
            row.last_node = captured_nodes() or first
            return
        with torch.profiler.record_function(f"{SITE_PREFIX}|{boundary}|{subtype}|{layer}|{path}"):
            yield row


def captured_nodes() -> int | None:
    """Nodes so far in the graph that the current stream is capturing; None if it is not capturing."""
    found = graph_nodes.captured_nodes(strict=True)
    return None if found is None else found[1]
