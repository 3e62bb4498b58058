"""NCCL's collectives begin late in a graph, and a fused kernel does not: what a site gains by that."""

from __future__ import annotations

from pathlib import Path

import pytest
from literal_traces import AR, GEMM, NORM, kernels

from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.candidate import fused_in
from fusionscope.analysis.estimate import Fused, estimate
from fusionscope.analysis.target import target
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def run(reduce: str = NCCL, lag: int = 2_400) -> Analysed:
    """Two layers of GEMM, all-reduce and norm: the all-reduce begins `lag` ns after the GEMM, all others 100."""
    layer = [(GEMM, 0, 10_000), (reduce, 10_000 + lag, 2_000), (NORM, 12_100 + lag, 3_000)]
    whole = 15_200 + lag
    launches = [(name, begin + k * whole, ns) for k in range(2) for name, begin, ns in layer]
    return analyse(Run(RunInfo(), Trace(kernels=kernels([launches] * 3)), Path()))


def saving(found: Analysed, fused: Fused) -> float:
    return estimate(found.attribution, found.schedule(), "ar_norm", "", fused, None).saving_ns


def test_a_fused_kernel_begins_as_soon_as_others_do() -> None:
    fused = Fused(time_ns=4_000, source="candidate")
    assert saving(run(), fused) == 2 * (5_100 - 4_000 + 2_300)
    assert saving(run(lag=100), fused) == saving(run(lag=60), fused) == 2 * (5_100 - 4_000)
    # What is not NCCL's has its place in the graph for other reasons, which the fused kernel shares.
    assert saving(run(AR), fused) == 2 * (5_100 - 4_000)


def test_a_site_that_begins_with_nccl_still_gains_nothing() -> None:
    assert fused_in(run(), "ar_norm").begins_late and not fused_in(run(AR), "ar_norm").begins_late
    again = fused_in(run(), "ar_norm")
    assert (again.time_ns, again.launches) == (5_000, 2)
    assert saving(run(), again) == 0
    # Of two launches that nobody traced, one may be NCCL's.
    assert saving(run(), Fused(time_ns=5_000, launches=2, source="in-context")) == 0


@pytest.mark.parametrize(("speedup", "part"), [(1.0, 0.0), (2.0, 0.5), (4.0, 0.75)])
def test_a_speed_up_shortens_the_beginning_too(speedup: float, part: float) -> None:
    assert saving(run(), Fused(speedup=speedup)) == pytest.approx(2 * part * (5_100 + 2_300))


def test_break_even_and_ceiling_count_it() -> None:
    found = run()
    goal = target(found.attribution, found.schedule(), "ar_norm")
    assert goal.late.tolist() == [[2_300], [2_300]]
    assert goal.time_for(0.0) == pytest.approx(5_100 + 2_300, abs=1)
    assert goal.ceiling_ns == 2 * (5_100 + 2_400)
