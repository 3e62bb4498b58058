"""How fast this GPU's memory is, measured beside a capture or a bench."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from fusionscope.profiler.runinfo import MEMORY_GBPS

#: Bytes that are read or copied: several times the largest cache of a GPU.
SIZE = 1 << 29
#: Timed turns; the median counts.
TURNS = 11


def measured() -> dict[str, str]:
    """GB/s of a large read or a large copy, whichever is faster; nothing where the memory for it is not there."""
    import torch

    try:
        source = torch.zeros(SIZE // 4, dtype=torch.float32, device="cuda")
        copy = torch.empty_like(source)
    except torch.OutOfMemoryError:
        return {}
    read = fastest([(SIZE, _timer(lambda: source.sum())), (2 * SIZE, _timer(lambda: copy.copy_(source)))])
    return {MEMORY_GBPS: f"{read:.0f}"}


def fastest(ways: list[tuple[int, Callable[[], float]]]) -> float:
    """The highest rate, bytes/ns (GB/s), of ways that move so many bytes in as many ns as their timer tells."""
    rates = []
    for size, timer in ways:
        # The first turn loads the kernel.
        timer()
        rates.append(size / statistics.median(timer() for _ in range(TURNS)))
    return max(rates)


def _timer(run: Callable[[], object]) -> Callable[[], float]:
    """Times one turn on the GPU, ns."""
    import torch

    def timed() -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e6

    return timed
