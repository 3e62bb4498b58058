"""What single captures are allowed for is what captures of the lab differ by."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fusionscope.analysis import observed
from fusionscope.analysis.observed import observe

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def test_the_allowances_are_those_of_the_stored_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    made = importlib.import_module("lab_captures")
    arms = list(made.distinct([row for row in made.lines(RESULTS / "h200_lab.jsonl") if "case" in row]))
    stored = json.loads((RESULTS / "h200_captures.json").read_text())
    assert stored["in_one_process"]["arms"] == len(arms)
    for name, distances, allowance in (
        ("in_one_process", [made.within(times) for times in arms], observed.ONE_PROCESS),
        ("in_two_processes", [made.across(times) for times in arms if len(times) > 1], observed.TWO_PROCESSES),
    ):
        share = np.mean([np.mean(d <= allowance + 5e-6) for d in distances if len(d)])
        assert stored[name]["p95"] == allowance and 0.945 <= share <= 0.96


@pytest.mark.parametrize(("together", "reach"), [(True, 6.77), (False, 10.22)])
def test_an_observation_is_undecided_and_its_interval_holds_another_capture(together: bool, reach: float) -> None:
    seen = observe(50.0, (49.0, 51.5), 1_000.0, 0.5, together=together, margin=0.005, next_step="measure it")
    assert seen.between_ns == pytest.approx(reach)
    assert seen.interval_ns == pytest.approx((50 - np.hypot(1, reach), 50 + np.hypot(1.5, reach)))
    assert (seen.verdict.class_, seen.verdict.kind, seen.verdict.would_be) == (
        "inconclusive", "observed", "worth_merging",
    )  # fmt: skip
    assert seen.verdict.sentence.endswith("What would settle it: measure it.")
    assert "noise floor" not in seen.verdict.quote and "worth merging" not in seen.verdict.quote


def test_an_observation_that_spans_classes_leans_to_none() -> None:
    seen = observe(1.0, (0.5, 1.5), 1_000.0, 0.1, together=False, margin=0.005, next_step="measure it")
    assert seen.verdict.would_be == "" and seen.verdict.sentence.startswith("Undecided: saves")
    unknown = observe(50.0, (40.0, 60.0), 1_000.0, None, together=False, margin=0.005, next_step="measure it")
    assert unknown.verdict.above_noise is None and unknown.verdict.class_ == "inconclusive"
