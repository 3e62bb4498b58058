"""Times of graph replays: arms take turns, the cache is cold before each replay, medians are compared."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

FLUSHED_BYTES = 256 << 20
"""More than any GPU's L2."""


def captured(chain: Callable[[], Any], warm_up: int = 2) -> torch.cuda.CUDAGraph:
    """A graph of what `chain` launches; it runs a few times before, so that kernels compile and buffers are made."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            chain()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # The graph's own pool keeps what the chain returns.
        graph.kept = chain()
    return graph


class Cold:
    """Empties the L2 cache by writing more than fits."""

    def __init__(self) -> None:
        self.buffer = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")

    def __call__(self) -> None:
        self.buffer.zero_()


def replay_times(
    graphs: Mapping[str, torch.cuda.CUDAGraph],
    replays: int = 25,
    before: Callable[[], None] | None = None,
) -> dict[str, list[float]]:
    """Microseconds of each replay of each graph, taking turns; `before` runs ahead of each, outside the time."""
    taken: dict[str, list[tuple[Any, Any]]] = {name: [] for name in graphs}
    for _ in range(3):
        for graph in graphs.values():
            graph.replay()
    for _ in range(replays):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if before is not None:
                before()
            begin.record()
            graph.replay()
            end.record()
            taken[name].append((begin, end))
        torch.cuda.synchronize()
    return {name: [begin.elapsed_time(end) * 1e3 for begin, end in pairs] for name, pairs in taken.items()}


def per_site(times: Mapping[str, list[float]], sites: int) -> dict[str, float]:
    """Median microseconds of each arm, divided by the sites of its graph."""
    return {name: statistics.median(values) / sites for name, values in times.items()}


def bandwidth() -> float:
    """Bytes a second of a large copy, read and written."""
    source = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    graph = captured(lambda: target.copy_(source))
    micro = statistics.median(replay_times({"copy": graph}, 10)["copy"])
    return 2 * source.numel() / (micro * 1e-6)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import triton

    return {
        "gpu": torch.cuda.get_device_name(),
        "gpus": torch.cuda.device_count(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }
