"""What other tools got wrong about a forward, as their users reported it: small traces with the right answer."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from literal_traces import SPLIT, kernels
from oracle import SAMPLES, needs_samples

from fusionscope.analysis.analysed import analyse
from fusionscope.analysis.forwards import forwards
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.readers import read_trace
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace, table


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


def test_B07_no_share_is_told_where_most_graph_launches_have_no_kernels() -> None:
    # Four replays of which the profiler kept one: the rest of the time is not idle but unknown.
    def launches(count: int) -> pd.DataFrame:
        starts = [1_000_000 * k - 5_000 for k in range(count)]
        told = {"correlation": [100 + k for k in range(count)], "start_ns": starts, "end_ns": starts}
        return table("launches", {"rank": 0, "process": 1, "name": "cudaGraphLaunch", "is_graph": True, **told})

    one = kernels([SPLIT])
    with pytest.raises(FusionScopeError, match=r"Of 4 graph launches of rank 0 only 1 have kernels.*record again"):
        forwards(Trace(kernels=one, launches=launches(4)))
    with pytest.raises(FusionScopeError, match="Of 1 graph launches of rank 0 only 0 have kernels"):
        forwards(Trace(kernels=one.assign(replay=-1), launches=launches(1)))
    # Half of them may be cut off at the ends of a short recording; another rank's launches say nothing of this one.
    assert forwards(Trace(kernels=kernels([SPLIT] * 2), launches=launches(4)))[0].replays == 2
    assert forwards(Trace(kernels=one, launches=launches(4).assign(rank=1).astype({"rank": "int32"})))[0].replays == 1


def test_B23_a_replay_that_lost_a_kernel_does_not_shift_the_places_of_the_others() -> None:
    """Without node ids, as on HIP, the place is the node; the whole replays tell which."""
    lost = [SPLIT[:2] + SPLIT[3:], SPLIT, SPLIT]
    trace = kernels(lost, nodes=False)
    sites = {"rank": 0, "boundary": "ar_norm", "site": [0, 0, 1, 1], "node": [1, 2, 4, 5], "path": "split"}
    found = analyse(Run(RunInfo(), Trace(kernels=trace, sites=table("sites", sites)), Path()))
    assert found.forward.replays == 2 and found.forward.launches == 6
    assert [s.columns for s in found.attribution.sites["ar_norm"]] == [(1, 2), (4, 5)]
    assert {s.rung for s in found.attribution.sites["ar_norm"]} == {3}
    assert any("1 of 3 replays of this graph lack 1 of 6 launches" in w for w in found.attribution.warnings)
