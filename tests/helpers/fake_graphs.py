"""Graphs of a made-up machine, whose every replay time can be worked out on paper."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

#: (ns that the host takes, ns that the GPU takes).
Launch = Callable[[], tuple[float, float]]


@dataclass
class FakeGraph:
    """Kernels in a row (`ns` of each by node); nodes in `hidden` run beside the others and cost no time."""

    names: list[str]
    ns: list[int]
    hidden: frozenset[int] = frozenset()


@dataclass
class FakeGraphs:
    """A launch of 5 us where nothing covers it, and 6 us more of a copy with disabled nodes.

    A disabled node takes 300 ns, a cycle half a ns, and there is noise where it is asked for.
    """

    noise_ns: float = 0.0
    seed: int = 0
    launch_ns: int = 5_000
    copy_ns: int = 6_000
    disabled_ns: int = 300
    cycle_ns: float = 0.5
    timed_launches: int = 0
    _random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self._random.seed(self.seed)

    def launch(self, graph: FakeGraph) -> Launch:
        return lambda: (self.launch_ns, sum(ns for k, ns in enumerate(graph.ns) if k not in graph.hidden))

    def timed(self, launch: Any) -> int:
        self.timed_launches += 1
        return round(sum(launch()) + self._random.gauss(0, self.noise_ns))

    def covered(self, launch: Any) -> int:
        return self.timed(lambda: (0, launch()[1]))

    def nodes(self, graph: FakeGraph) -> list[str]:
        return graph.names

    def without(self, graph: FakeGraph, nodes: Iterable[int]) -> Launch:
        gone = set(nodes) - graph.hidden
        whole = self.launch(graph)
        host = self.launch_ns + self.copy_ns
        return lambda: (host, whole()[1] + sum(self.disabled_ns - graph.ns[k] for k in gone))

    def delayed(self, graph: FakeGraph, nodes: Sequence[int], cycles: int) -> Launch:
        seen = [k for k in nodes if k not in graph.hidden]
        whole = self.launch(graph)
        return lambda: (self.launch_ns, whole()[1] + len(seen) * (800 + cycles * self.cycle_ns))

    def ns_per_cycle(self) -> float:
        return self.cycle_ns

    def chain(self, kernels: int) -> FakeGraph:
        return FakeGraph(["small"] * kernels, [1_000] * kernels)
