from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from literal_traces import timings

from fusionscope.analysis.noise import baseline, bootstrap, smallest_effect
from fusionscope.profiler.trace import table


def test_the_most_trusted_source_counts_and_the_traced_process_never_does() -> None:
    rows = pd.concat([timings([[50] * 10], "traced process"), timings([[30] * 10], "host latency")])
    found = baseline(table("timings", rows.astype({"arm": object, "source": object})))
    assert found is not None and (found.median_ns, found.source) == (30, "host latency")
    assert baseline(timings([[50] * 10], "traced process")) is None


def test_two_halves_of_a_block_give_the_noise_floor() -> None:
    # Halves differ by +4, -4, +4, -4: spread 4.62, error of the mean of four 2.31.
    blocks = [[104, 104, 100, 100], [100, 100, 104, 104]] * 2
    found = baseline(timings(blocks))
    assert found is not None and found.mde_ns is not None
    error = np.std([4, -4, 4, -4], ddof=1) / 2
    assert found.mde_ns == pytest.approx(error * (3.182446 + 0.978472), rel=1e-5)


def test_few_blocks_say_nothing_of_the_noise() -> None:
    found = baseline(timings([[100, 101, 102, 103]] * 2))
    assert found is not None and found.mde_ns is None


def test_a_list_without_blocks_is_cut_into_blocks() -> None:
    rows = timings([list(range(1000, 1040))]).assign(block=-1)
    found = baseline(rows)
    assert found is not None and found.blocks == 4 and found.mde_ns is not None


def test_more_blocks_lower_the_floor() -> None:
    spread = np.array([3.0, -2.0, 1.0, -4.0])
    few, many = smallest_effect(spread), smallest_effect(np.tile(spread, 10))
    assert few is not None and many is not None and many < few / 3


def test_the_bootstrap_is_the_same_every_time_and_holds_the_median() -> None:
    values = np.random.default_rng(1).normal(100, 5, 60)
    low, high = bootstrap(values)
    assert (low, high) == bootstrap(values) and low <= np.median(values) <= high
    assert np.isnan(bootstrap(values[:1])).all()
