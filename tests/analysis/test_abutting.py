"""HIP graphs, whose launches abut: durations contain the dispatch, no gap goes, and a hole is no fusion's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.estimate import Fused, of_target
from fusionscope.analysis.floors import Shape, floors
from fusionscope.analysis.outlook import outlook
from fusionscope.analysis.sites import Site
from fusionscope.analysis.suggest import suggest
from fusionscope.analysis.target import Target
from fusionscope.profiler.importing import import_files
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run

FILES = ("kineto_mi300x_sglang_decode.json.gz", "kineto_mi300x_vllm_decode_full_graph.json.gz")


def opened(samples: Path, file: str) -> Analysed:
    return analyse(Run(RunInfo(imported=True), import_files([samples / file]), Path()))


def of(run: Analysed, sites: list[Site]) -> Target:
    return Target(run.attribution, run.schedule(), "chain", "", sites, None, None)


@pytest.mark.parametrize("file", FILES)
def test_a_chain_gains_its_durations_and_no_gap(samples: Path, file: str) -> None:
    run = opened(samples, file)
    assert run.forward.abutting
    best = suggest(run)[0]
    found = of(run, best.sites)
    launches = sum(len(s.columns) for s in best.sites)
    # Every gap is one nanosecond at most.
    assert 0 <= found.ceiling_ns - found.kernel_time_ns <= launches
    each = found.kernel_time_ns / len(best.sites)
    assert outlook(found, floors(found, Shape())).break_even_ns == pytest.approx(each, abs=len(best.kernels) + 1)
    # No launch of either trace is shorter than 4.3 us: that is the floor, not what a kernel takes in a loop.
    assert 4_300 < floors(found, Shape()).floor_ns < 4_500


@pytest.mark.parametrize("file", FILES)
def test_a_time_alone_in_a_loop_is_another_unit(samples: Path, file: str) -> None:
    run = opened(samples, file)
    found = of(run, suggest(run)[0].sites)
    alone, there = (of_target(found, Fused(time_ns=10_000, source=s)) for s in ("isolated", "candidate"))
    assert "The launches of this trace abut: each duration contains its dispatch" in alone.verdict.sentence
    assert "no launch is shorter than 4." in there.verdict.sentence
    dispatch = float(run.forward.duration.min())
    # In the worst case 1.6 times the time, and one more dispatch at each site; other errors come on top.
    worst = len(found.sites) * (6_000 + dispatch)
    assert 0.999 * worst <= alone.saving_ns - alone.interval_ns[0] <= 1.1 * worst
    assert there.saving_ns - there.interval_ns[0] < 0.1 * worst


def test_the_hole_of_274_us_is_credited_to_no_fusion(samples: Path) -> None:
    run = opened(samples, FILES[0])
    schedule = run.schedule()
    lags = np.array([lag[0] for lag in schedule.lags])
    after = int(lags.argmax())
    assert lags[after] == 273_690 and schedule.waits_for[after] == (after - 1,)
    found = of(run, [Site("chain", "", -1, (after - 1, after), 4)])
    assert found.ceiling_ns == pytest.approx(found.kernel_time_ns, abs=2)
    assert found.saving_at(found.kernel_time_ns) == pytest.approx(0, abs=2)
