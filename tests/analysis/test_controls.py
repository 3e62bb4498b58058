from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from literal_traces import Launch
from scipy import stats

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.controls import controls
from fusionscope.analysis.paired_rows import paired_rows


def rows(count: int, shifted: dict[int, float], seed: int = 0) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Times of kernels of 10 us with 0.3 % noise over 12 replays; some are shifted on the second side."""
    rng = np.random.default_rng(seed)
    base, candidate = {}, {}
    for k in range(count):
        base[f"k{k}"] = rng.normal(10_000, 30, 12)
        candidate[f"k{k}"] = rng.normal(10_000 + shifted.get(k, 0.0), 30, 12)
    return base, candidate


def test_what_moved_is_found_and_the_rest_is_a_control() -> None:
    found = controls(*rows(200, {3: 400.0, 7: -500.0}))
    assert [row.name for row in found if row.moved] == ["k3", "k7"]
    assert all(row.q >= row.p for row in found)
    assert [row.q for row in found] == pytest.approx(stats.false_discovery_control([row.p for row in found]))


def test_of_many_untouched_kernels_none_is_called_moved() -> None:
    # Without the adjustment, 5 % of these rows would be.
    false = [row.moved for seed in range(10) for row in controls(*rows(100, {}, seed), drift=0.0)]
    plain = [row.p <= 0.05 for seed in range(10) for row in controls(*rows(100, {}, seed))]
    assert sum(false) <= 3 and sum(plain) > 20


def test_drift_between_captures_is_no_finding() -> None:
    base, candidate = rows(50, dict.fromkeys(range(50), 60.0))
    assert not any(row.moved for row in controls(base, candidate))
    assert sum(row.moved for row in controls(base, candidate, drift=0.002)) > 40


def test_too_few_replays_and_kernels_of_one_side_are_left_alone() -> None:
    few = {"a": np.array([1.0, 2.0, 3.0]), "only": np.array([1.0] * 9)}
    found = controls(few, {"a": np.array([9.0, 9.0, 9.0])})
    assert [(row.name, row.p, row.moved) for row in found] == [("a", 1.0, False)]
    same = {"a": np.full(9, 5.0)}
    assert controls(same, same)[0].p == 1.0
    assert controls({}, {}) == []


def test_a_comparison_of_many_rows_calls_no_row_changed_by_chance(
    made: Callable[..., Analysed], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)

    def replays(first: int) -> list[list[Launch]]:
        times = rng.normal(10_000, 500, (8, 200)).astype(int)
        times[:, 0] = first + np.arange(8)
        return [[(f"k{k}", 20_000 * k, int(ns)) for k, ns in enumerate(row)] for row in times]

    base, candidate = made(replays(10_000)), made(replays(10_400))
    changed = [row.name for row in paired_rows(base, candidate, []) if row.status != "untouched"]
    assert changed == ["k0"]
    monkeypatch.setattr("fusionscope.analysis.paired_rows.ENOUGH_REPLAYS", 99)
    assert len([row for row in paired_rows(base, candidate, []) if row.status != "untouched"]) > 1
