"""Measuring a real graph: copies with disabled nodes and with delays."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpus import needs_gpu

from fusionscope.profiler import measure
from fusionscope.profiler.capture.clocks import Clocks
from fusionscope.profiler.capture.graph_copies import CudaGraphs

pytestmark = needs_gpu
KERNELS = 40


@pytest.fixture(scope="module")
def chain() -> Any:
    """40 products in a row, of some 20 us each."""
    x = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) / 45
    for _ in range(3):
        y = x @ w
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        y = x
        for _ in range(KERNELS):
            y = y @ w
    graph.instantiate()
    graph.replay()
    torch.cuda.synchronize()
    # What a graph reads must stay alive: another capture gives free memory back.
    yield graph, y, (x, w)


def test_names_and_replays(chain: Any) -> None:
    graph, *_ = chain
    found = measure.names(graph)
    assert len(found) == KERNELS and all(name not in ("", "?") for name in found), found[:2]
    assert measure.named(graph, ".") == list(range(KERNELS))
    assert (measure.replays(graph, 5) > 0).all()


def test_what_a_disabled_node_costs_is_measured_without_slowing_other_graphs() -> None:
    on = CudaGraphs()
    small = on.chain(400)
    launch = on.without(small, [])
    before = sorted(on.timed(launch) for _ in range(30))[15]
    measure.disabled_node_ns()
    after = sorted(on.timed(launch) for _ in range(30))[15]
    on.close()
    assert after < 1.08 * before  # 1.2 where a chain was instantiated and not launched


def test_half_of_the_kernels_take_about_half_of_the_time(chain: Any) -> None:
    graph, y, _ = chain
    before = y.clone()
    found = measure.knockout(graph, range(1, KERNELS, 2), blocks=6)
    assert 0.35 < found.raw_ns / found.base_ns < 0.6
    assert 50 < found.disabled_node_ns < 2_000
    assert found.corrected_ns > found.raw_ns
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(before, y)  # the graph itself still does all of its work


def test_a_delay_on_the_only_path_is_critical(chain: Any) -> None:
    found = measure.delay(chain[0], [3, 10, 20], 20.0, blocks=6)
    assert 0.8 < found.criticality < 1.2


def test_the_clocks_are_read(chain: Any) -> None:
    pytest.importorskip("pynvml")
    reading = Clocks(torch.cuda.current_device()).read()
    assert reading.sm_mhz > 0 and reading.temperature_c > 0


def test_copies_can_be_let_go(chain: Any) -> None:
    on = CudaGraphs()
    launch = on.without(chain[0], [1])
    assert on.timed(launch) > 0
    on.close()
