"""What other tools got wrong about a forward, as their users reported it: small traces with the right answer."""

from __future__ import annotations

from pathlib import Path

from literal_traces import kernels
from oracle import SAMPLES, needs_samples

from fusionscope.analysis.forwards import forwards
from fusionscope.profiler.readers import read_trace
from fusionscope.profiler.trace import Trace


def test_B04_what_lies_between_two_replays_is_no_idle_time_of_a_forward() -> None:
    # 10 ms lie between the replays, 1 us within each.
    rows = kernels([[("a", 0, 4_000), ("b", 5_000, 4_000)]] * 2, gap=10_000_000)
    found = forwards(Trace(kernels=rows))[0]
    assert list(found.span) == [9_000, 9_000] and list(found.busy_time) == [8_000, 8_000]


def test_B37_two_streams_at_once_are_busy_once() -> None:
    rows = kernels([[("a", 0, 10_000, 7), ("b", 0, 10_000, 8)]])
    found = forwards(Trace(kernels=rows))[0]
    assert list(found.kernel_time) == [20_000]
    assert list(found.busy_time) == [10_000] and list(found.span) == [10_000]


@needs_samples
def test_B06_a_decode_trace_alone_is_enough(tmp_path: Path) -> None:
    # The recording of the capture, which some engines no longer write, is not beside it.
    path = tmp_path / "decode.json.gz"
    path.write_bytes((SAMPLES / "kineto_mi300x_sglang_decode.json.gz").read_bytes())
    found = forwards(read_trace(path))[0]
    assert found.launches >= 544
