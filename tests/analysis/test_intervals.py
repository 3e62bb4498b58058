from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fusionscope.analysis.intervals import union_ns

Pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12)


def union(pairs: list[tuple[int, int]]) -> int:
    start, duration = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True)) if pairs else ([], [])
    return union_ns(np.array(start, dtype=np.int64), np.array(duration, dtype=np.int64))


@given(Pairs)
def test_union_counts_every_covered_nanosecond_once(pairs: list[tuple[int, int]]) -> None:
    covered = {t for start, duration in pairs for t in range(start, start + duration)}
    assert union(pairs) == len(covered)


@given(Pairs, Pairs)
def test_union_grows_and_never_exceeds_the_sum(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    assert max(union(one), union(other)) <= union(one + other) <= union(one) + union(other)


def test_times_beyond_float64_keep_their_nanoseconds() -> None:
    start = np.array([7_900_000_000_000_000_001, 7_900_000_000_000_000_003], dtype=np.int64)
    assert union_ns(start, np.array([3, 1], dtype=np.int64)) == 3
