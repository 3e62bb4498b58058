"""Which pairs of runs may be compared, and which field says no."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fusionscope.analysis.comparable import mismatches, refusal
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace

KNOWN: dict[str, Any] = {
    "model": "m",
    "tp": 4,
    "batch": 4,
    "device": "cuda",
    "machine": {"gpu": "NVIDIA H200", "sm_clock_mhz": "1980"},
}


def run(**info: Any) -> Run:
    return Run(RunInfo(**KNOWN | info), Trace(), Path())


def test_paths_and_names_are_the_choice_and_no_mismatch() -> None:
    assert mismatches(run(name="a"), run(name="b", paths={"mhc_post": "triton"})) == []
    assert refusal([]) == ""


@pytest.mark.parametrize(
    ("field", "other", "before", "after"),
    [
        ("batch", {"batch": 64}, "4", "64"),
        ("model", {"model": "other"}, "m", "other"),
        ("gpu", {"machine": {"gpu": "AMD MI300X", "sm_clock_mhz": "1980"}}, "NVIDIA H200", "AMD MI300X"),
        ("label emulated ranks", {"labels": ["emulated ranks"]}, "no", "yes"),
        ("label cpu", {"labels": ["cpu"]}, "no", "yes"),
    ],
)
def test_another_experiment_refuses_and_names_the_field(field: str, other: Any, before: str, after: str) -> None:
    (only,) = mismatches(run(), run(**other))
    assert (only.field, only.base, only.candidate, only.refuses) == (field, before, after, True)
    assert f"{field}: {before} in the base, {after} in the candidate" in refusal([only])


def test_other_clocks_and_a_side_that_does_not_know_are_warnings() -> None:
    slower = run(machine={"gpu": "NVIDIA H200", "sm_clock_mhz": "1200"}, batch=-1)
    found = mismatches(run(), slower)
    assert {(m.field, m.candidate) for m in found} == {("sm_clock_mhz", "1200"), ("batch", "unknown")}
    assert refusal(found) == ""


def test_what_refuses_comes_first() -> None:
    found = mismatches(run(profiler="nsys"), run(profiler="cupti", batch=1))
    assert [(m.field, m.refuses) for m in found] == [("batch", True), ("profiler", False)]
