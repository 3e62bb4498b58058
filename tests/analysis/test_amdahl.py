from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionscope.analysis.amdahl import gain
from fusionscope.profiler.errors import FusionScopeError


def test_the_published_case() -> None:
    assert gain(0.0033, 2.0) == pytest.approx(0.00165, rel=1e-12)


@given(st.floats(0, 1), st.floats(1, 1e6))
def test_a_speedup_never_gains_more_than_the_share(share: float, speedup: float) -> None:
    assert 0 <= gain(share, speedup) <= share


def test_a_slowdown_costs_and_a_vanished_boundary_gives_its_share() -> None:
    assert gain(0.1, 0.5) == pytest.approx(-0.1)
    assert gain(0.1, math.inf) == 0.1


@pytest.mark.parametrize("share,speedup", [(-0.1, 2), (1.1, 2), (0.1, 0), (0.1, -1), (0.1, math.nan), (math.nan, 2)])
def test_nonsense_is_refused_with_the_option_to_mend(share: float, speedup: float) -> None:
    with pytest.raises(FusionScopeError, match=r"--share|--speedup"):
        gain(share, speedup)
