"""Untraced times of two runs: intervals without blocks, and the command that would measure."""

from __future__ import annotations

import pytest

from fusionscope.analysis.between import next_step, untraced
from fusionscope.analysis.noise import Baseline
from fusionscope.profiler.runinfo import RunInfo

NAN = float("nan")


def once(ns: float) -> Baseline:
    return Baseline(ns, (NAN, NAN), None, 1, 1, "untraced", {0: ns})


@pytest.mark.parametrize("after", [900.0, 1_100.0])
def test_one_block_leaves_open_which_arm_is_faster(after: float) -> None:
    found = untraced([once(1_000.0)], [once(after)], False, 0.005, "", "measure it")
    low, high = found.interval_ns
    assert low < -100 and high > 100 and (low + high) / 2 == pytest.approx(found.saving_ns)
    assert found.mde_ns is None and found.verdict.class_ == "inconclusive"


def test_the_command_that_measures_names_the_paths_of_both_arms() -> None:
    split, fused = ({"mhc_post": path, "moe_finalize": "split"} for path in ("split", "triton"))
    base, candidate = (
        RunInfo(model="tiny", tp=4, batch=1, context=64, labels=["built-in model"], device="cuda", paths=paths)
        for paths in (split, fused)
    )
    assert "--base split --candidate mhc_post=triton," in next_step(base, candidate)
    assert "--base mhc_post=triton --candidate mhc_post=split,moe_finalize=split," in next_step(candidate, base)
