"""The memory's bandwidth from timers of made-up machines; the GPU part is in a test of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fusionscope.profiler.capture import bandwidth


def test_the_faster_way_counts_by_its_median_turn_without_the_first() -> None:
    def timer(first: float, *later: float) -> Iterator[float]:
        yield first
        yield from (later * bandwidth.TURNS)[: bandwidth.TURNS]

    read, copy = timer(1.0, 100.0, 110.0, 120.0), timer(1e9, 250.0)
    assert bandwidth.fastest([(1_000, lambda: next(read)), (2_000, lambda: next(copy))]) == 1_000 / 110
    read, copy = timer(1.0, 100.0, 110.0, 120.0), timer(1e9, 200.0)
    assert bandwidth.fastest([(1_000, lambda: next(read)), (2_000, lambda: next(copy))]) == 2_000 / 200


@pytest.mark.gpu
def test_a_gpu_reads_within_what_its_vendor_publishes() -> None:
    torch = pytest.importorskip("torch")
    from fusionscope.analysis.floors import shape_of
    from fusionscope.profiler.runinfo import RunInfo

    published = shape_of(RunInfo(machine={"gpu": torch.cuda.get_device_name(0)})).memory_bytes_per_ns
    rate = float(bandwidth.measured()["memory_gbps"])
    assert rate > 200
    assert published is None or 0.7 * published < rate < published
