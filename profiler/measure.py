"""Measures CUDA graphs in the process that holds them: replay times, two graphs in turn, knock-outs and delays.

    from fusionscope.profiler import measure
    times = measure.replays(graph)
    table = measure.ab([split, split_2, split_3], [fused, fused_2, fused_3])  # captures of each
    # fusionscope.analysis.ab.compare(table) judges it
    found = measure.knockout(graph, measure.named(graph, "all_reduce"))

`graph` is a `torch.cuda.CUDAGraph(keep_graph=True)` that has been replayed before. Nothing here changes it. Where
several ranks meet in the graph, every rank must make the same call with the same arguments.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionscope.profiler.capture.graph_copies import CudaGraphs, Launch
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.trace import table

BLOCKS, REPLAYS = 30, 5
BASE, CANDIDATE, AGAIN, CANDIDATE_AGAIN = "base", "candidate", "base again", "candidate again"
WITHOUT, SHORT, LONG = "without", "short delay", "long delay"
#: Untimed replays at the start of a turn: the first after another graph finds its data in the cache.
_LEAD = 1
#: The shorter of two delays, ns: what it takes to launch the delaying kernel is in both, and cancels.
_LEAST_DELAY_NS = 1000
#: Kernels of the two chains that tell what a disabled node costs.
CHAINS = (100, 500)


class Graphs(Protocol):
    """What measuring needs of the machine; `CudaGraphs` is it on a GPU."""

    def launch(self, graph: Any) -> Launch: ...
    def timed(self, launch: Launch) -> int: ...
    def covered(self, launch: Launch) -> int: ...
    def nodes(self, graph: Any) -> list[str]: ...
    def without(self, graph: Any, nodes: Iterable[int]) -> Launch: ...
    def delayed(self, graph: Any, nodes: Sequence[int], cycles: int) -> Launch: ...
    def ns_per_cycle(self) -> float: ...
    def chain(self, kernels: int) -> Any: ...


class SiteLike(Protocol):
    """A site with its half-open range of graph nodes, as the recorder of the decode forward leaves it."""

    boundary: str
    subtype: str
    first_node: int
    last_node: int


@dataclass(frozen=True)
class Knockout:
    """A graph with and without some of its nodes; medians over blocks, ns.

    `raw_ns` is a lower bound of what the step gains if they cost nothing, since a disabled node still costs something;
    `corrected_ns` adds that cost as it was measured in this process.
    """

    base_ns: float
    without_ns: float
    nodes: int
    disabled_node_ns: float
    timings: pd.DataFrame

    @property
    def raw_ns(self) -> float:
        """Difference of the replay times."""
        return self.base_ns - self.without_ns

    @property
    def corrected_ns(self) -> float:
        """The difference with what the disabled nodes still cost."""
        return self.raw_ns + self.nodes * self.disabled_node_ns


@dataclass(frozen=True)
class Delay:
    """How much longer the step takes for each ns by which nodes are delayed: 1 on the critical path, 0 off it."""

    added_ns: float
    step_ns: float
    nodes: int
    timings: pd.DataFrame

    @property
    def criticality(self) -> float:
        """Growth of the step over the sum of the delays."""
        return self.step_ns / (self.added_ns * self.nodes)


def replays(graph: Any, count: int = 50, *, graphs: Graphs | None = None) -> NDArray[np.int64]:
    """[count] ns of single replays, each waited for, after a few that are not timed."""
    on = graphs or CudaGraphs()
    launch = on.launch(graph)
    for _ in range(3):
        on.timed(launch)
    return np.array([on.timed(launch) for _ in range(count)], dtype=np.int64)


def in_blocks(
    arms: Mapping[str, Callable[[], int]],
    blocks: int = BLOCKS,
    replays: int = REPLAYS,
    *,
    seconds: float | None = None,
    seed: int = 0,
    finished: Callable[[int, list[tuple[str, int]]], object] = lambda block, rows: None,
) -> list[tuple[int, str, int]]:
    """(block, arm, ns) of every timed replay, in the order in which they were taken.

    A block runs the arms in random order and then in that order reversed, `replays` timed replays a turn. Ends after
    `blocks`, or with the block in which `seconds` have passed. `finished` is told of each block when it is whole.
    """
    chooser = random.Random(seed)
    until = None if seconds is None else time.monotonic() + seconds
    rows: list[tuple[int, str, int]] = []
    for block in range(blocks):
        order = list(arms)
        chooser.shuffle(order)
        taken: list[tuple[str, int]] = []
        for arm in [*order, *reversed(order)]:
            for _ in range(_LEAD):
                arms[arm]()
            taken += [(arm, arms[arm]()) for _ in range(replays)]
        finished(block, taken)
        rows += [(block, arm, ns) for arm, ns in taken]
        if until is not None and time.monotonic() >= until:
            break
    return rows


def as_table(rows: list[tuple[int, str, int]], process: int = -1, rank: int = 0) -> pd.DataFrame:
    """The table TIMINGS of one process's blocks."""
    if not rows:
        return table("timings")
    data = pd.DataFrame(rows, columns=["block", "arm", "duration_ns"])
    return table("timings", data.assign(rank=rank, process=process, source="untraced"))


def names_of(arm: str, count: int) -> list[str]:
    """What the captures of an arm are called: `base`, `base again`, `base again 2`, …."""
    return [arm, f"{arm} again", *(f"{arm} again {k}" for k in range(2, count))][:count]


def ab(
    graph_a: Any,
    graph_b: Any,
    *,
    again: Any = None,
    candidate_again: Any = None,
    blocks: int = BLOCKS,
    replays: int = REPLAYS,
    seconds: float | None = None,
    seed: int = 0,
    process: int = -1,
    graphs: Graphs | None = None,
) -> pd.DataFrame:
    """Measure two graphs in turn -> the table TIMINGS with the arms `base`, `candidate`, and each captured again.

    Each is one graph, or a list of captures of one program. What they differ by is noise, and a verdict of faster or
    slower takes two of each. `again` and `candidate_again` are one more capture of either.
    """
    on = graphs or CudaGraphs()
    arms: dict[str, Callable[[], int]] = {}
    for arm, given, more in ((BASE, graph_a, again), (CANDIDATE, graph_b, candidate_again)):
        graphs_of = [*(given if isinstance(given, (list, tuple)) else [given]), *([] if more is None else [more])]
        arms |= {n: _timer(on, on.launch(g)) for n, g in zip(names_of(arm, len(graphs_of)), graphs_of, strict=True)}
    return as_table(in_blocks(arms, blocks, replays, seconds=seconds, seed=seed), process)


def named(graph: Any, pattern: str, *, graphs: Graphs | None = None) -> list[int]:
    """Ordinals of the nodes whose kernel's (mangled) name contains the regular expression."""
    on = graphs or CudaGraphs()
    found = [node for node, name in enumerate(on.nodes(graph)) if name and re.search(pattern, name)]
    if not found:
        raise FusionScopeError(f"No kernel of this graph is called like {pattern!r}: measure.names lists them.")
    return found


def names(graph: Any, *, graphs: Graphs | None = None) -> list[str]:
    """The (mangled) kernel name of each node, "" for a node that is no kernel."""
    return (graphs or CudaGraphs()).nodes(graph)


def nodes_of(sites: Iterable[SiteLike], boundary: str) -> list[int]:
    """The graph nodes of a boundary's sites (`mhc_post` or `mhc_post:ffn_exit`), each once.

    Raises FusionScopeError where there is none, or where the sites are of several graphs.
    """
    kind, _, subtype = boundary.partition(":")
    sites = list(sites)
    if not sites:
        raise FusionScopeError(
            f"Nothing says which nodes {boundary} has: give its sites (sites=marks.rows of "
            "fusion_runtime.marks.record), or nodes in place of its name (measure.named finds them by kernel name)."
        )
    # A mark tells its capture; an engine captures a graph for each batch size.
    captures = sorted({getattr(s, "capture", 0) for s in sites})
    if len(captures) > 1:
        raise FusionScopeError(
            f"The sites are of {len(captures)} captured graphs: give those of this one, as in "
            f"[m for m in marks.rows if m.capture == {captures[0]}]."
        )
    mine = [s for s in sites if s.boundary == kind and (not subtype or s.subtype == subtype)]
    found = sorted({node for s in mine for node in range(s.first_node, s.last_node) if node >= 0})
    if not found:
        raise FusionScopeError(f"The graph has 0 nodes of {boundary}: `fusionscope attribute` lists what a model has.")
    return found


def knockout(
    graph: Any,
    nodes: Iterable[int] | str,
    *,
    sites: Iterable[SiteLike] = (),
    blocks: int = BLOCKS,
    replays: int = REPLAYS,
    seed: int = 0,
    disabled_ns: float | None = None,
    graphs: Graphs | None = None,
) -> Knockout:
    """What the step gains without these nodes: the ceiling of any fusion of them, on the real machine.

    What the nodes wrote stays as the last whole replay left it, and is the same where the graph uses no memory twice;
    where it does, routers and the like that read it choose otherwise, and the step changes for that as well.

    `nodes` are ordinals, or the name of a boundary whose nodes `sites` tell. `disabled_ns` is what a disabled node
    costs, where it has been measured in this process before.
    """
    chosen = nodes_of(sites, nodes) if isinstance(nodes, str) else sorted(set(nodes))
    with _machine(graphs) as on:
        cost = disabled_node_ns(graphs=on) if disabled_ns is None else disabled_ns
        arms = {BASE: covered(on, on.launch(graph)), WITHOUT: covered(on, on.without(graph, chosen))}
        rows = in_blocks(arms, blocks, replays, seed=seed)
    base, without = (_median(rows, arm) for arm in (BASE, WITHOUT))
    return Knockout(base, without, len(chosen), cost, as_table(rows))


def delay(
    graph: Any,
    nodes: Iterable[int] | str,
    delay_us: float,
    *,
    sites: Iterable[SiteLike] = (),
    blocks: int = BLOCKS,
    replays: int = REPLAYS,
    seed: int = 0,
    graphs: Graphs | None = None,
) -> Delay:
    """How much the step grows if each of these nodes ends `delay_us` later (see `Delay.criticality`).

    Two copies are compared that differ in the length of a spinning kernel alone, so its launch is in neither result.
    """
    chosen = nodes_of(sites, nodes) if isinstance(nodes, str) else sorted(set(nodes))
    if not delay_us > 0:
        raise FusionScopeError(f"The delay must be a number of us above 0, not {delay_us:g}.")
    with _machine(graphs) as on:
        cycle = on.ns_per_cycle()
        short = round(_LEAST_DELAY_NS / cycle)
        long = short + round(delay_us * 1000 / cycle)
        arms = {name: _timer(on, on.delayed(graph, chosen, cycles)) for name, cycles in ((SHORT, short), (LONG, long))}
        rows = in_blocks(arms, blocks, replays, seed=seed)
    step = _median(rows, LONG) - _median(rows, SHORT)
    return Delay((long - short) * cycle, step, len(chosen), as_table(rows))


def disabled_node_ns(*, graphs: Graphs | None = None) -> float:
    """What a disabled node still costs in a chain of kernels, ns: the slope between a short and a long chain."""
    arms: dict[str, Callable[[], int]] = {}
    with _machine(graphs) as on:
        for kernels in CHAINS:
            # The first and the last kernel stay, so that both chains begin and end alike.
            arms[str(kernels)] = covered(on, on.without(on.chain(kernels), range(1, kernels - 1)))
        rows = in_blocks(arms, 10, 5)
    few, many = CHAINS
    # Noise must not make a corrected gain smaller than the raw one, which is a lower bound.
    return max((_median(rows, str(many)) - _median(rows, str(few))) / (many - few), 0.0)


@contextmanager
def _machine(graphs: Graphs | None) -> Iterator[Graphs]:
    """The machine that was given, or one of our own whose copies of graphs are let go of at the end."""
    if graphs is not None:
        yield graphs
        return
    own = CudaGraphs()
    try:
        yield own
    finally:
        own.close()


def _timer(on: Graphs, launch: Launch) -> Callable[[], int]:
    return lambda: on.timed(launch)


def covered(on: Graphs, launch: Launch) -> Callable[[], int]:
    """A timer of a replay without what the host takes to launch it, which differs between a graph and a copy."""
    return lambda: on.covered(launch)


def _median(rows: list[tuple[int, str, int]], arm: str) -> float:
    return float(np.median([ns for _, name, ns in rows if name == arm]))
