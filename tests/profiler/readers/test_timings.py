"""Untraced replay times in the forms that people have."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import pytest

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.readers import read_timings
from fusionscope.profiler.trace import TIMINGS

SAMPLES = Path(__file__).parents[3] / "../shared/samples"
needs_samples = pytest.mark.skipif(not SAMPLES.exists(), reason="../shared/samples is not here")


@needs_samples
def test_only_the_arm_that_was_asked_for() -> None:
    path = SAMPLES / "h200_ar_norm/untraced_abba.json"
    raw = json.loads(path.read_text())["rows"]
    for arm in ("split", "fused"):
        rows = read_timings(f"{path}:{arm}")
        assert set(rows["arm"]) == {arm} and set(rows["source"]) == {"untraced"}
        assert list(rows["duration_ns"]) == [round(t * 1000) for *_, name, t in raw if name == arm]
        assert list(zip(rows["process"], rows["block"], strict=True)) == [
            (p, b) for p, b, name, _ in raw if name == arm
        ]
        assert {c: str(rows[c].dtype) for c in TIMINGS} == TIMINGS
    with pytest.raises(FusionScopeError, match=r"several arms \(split, fused.*untraced_abba.json:split"):
        read_timings(str(path))
    with pytest.raises(FusionScopeError, match="no arm slow: its arms are split, fused"):
        read_timings(f"{path}:slow")


@needs_samples
def test_rows_by_rank() -> None:
    rows = read_timings(str(SAMPLES / "h200_tp2_skew/untraced.json"))
    want = json.loads((SAMPLES / "oracle.json").read_text())["h200_tp2_skew/untraced.json"]["oracle"]["median_us"]
    for rank, median in want.items():
        found = rows[rows["rank"] == int(rank)]["duration_ns"]
        assert len(found) == 300
        assert statistics.median(map(int, found)) == round(median * 1000)


@needs_samples
def test_a_graph_mode_export() -> None:
    rows = read_timings(str(SAMPLES / "synthetic_nsys_2gpu_graph_mode.sqlite"))
    assert list(rows["source"]) == ["graph-level trace"] * 6
    with pytest.raises(FusionScopeError, match="--cuda-graph-trace=graph"):
        read_timings(str(SAMPLES / "h200_ar_norm/split.nsys.sqlite"))


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ('{"unit": "us", "times": [952.272, 1e3, 7]}', [952272, 1000000, 7000]),
        ('{"unit": "ns", "times": ["12", 13]}', [12, 13]),
        ('{"unit": "ms", "rows": [[0, "a", 0.952272], [1, "a", 1]]}', [952272, 1000000]),
        ('{"unit": "s", "rank": 2, "rows": [0.000000001]}', [1]),
        ('[{"time_us": 5109432595769.991}, {"time_us": 2}]', [5109432595769991, 2000]),
        ("time_us\n952.272\n\n951\n", [952272, 951000]),
        ("\ufeffprocess,block,arm,time (ms)\n1,0,a,0.5\n1,1,a,0.25\n", [500000, 250000]),
        ("ns\n7\n", [7]),
    ],
)
def test_units_are_exact(tmp_path: Path, text: str, ns: list[int]) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    rows = read_timings(str(path))
    assert list(rows["duration_ns"]) == ns
    assert set(rows["source"]) == {"untraced"}
    if '"rank"' in text:
        assert set(rows["rank"]) == {2}


def test_csv_columns_and_arms(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("rank,process,block,arm,time_us\n0,1,2,a,3\n1,4,5,b,6\n")
    rows = read_timings(f"{path}:b")
    assert rows.to_dict("list") == {
        "rank": [1],
        "process": [4],
        "block": [5],
        "arm": ["b"],
        "duration_ns": [6000],
        "source": ["untraced"],
    }


def test_a_colon_in_the_name_is_no_arm(tmp_path: Path) -> None:
    path = tmp_path / "10:30.csv"
    path.write_text("time_us\n1\n")
    assert len(read_timings(str(path))) == 1
    with pytest.raises(FusionScopeError, match="has no arm x: it has no arms"):
        read_timings(f"{path}:x")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"times": [1]}', "tells no unit"),
        ("[1, 2]", "tells no unit"),
        ('{"unit": "us", "times": []}', "holds no times"),
        ('{"unit": "us"}', "no rows, rows_by_rank or times"),
        ('{"unit": "us", "times": [null]}', "None is no time"),
        ('{"unit": "us", "times": [-1]}', "-1 is no time"),
        ('{"unit": "us", "times": [NaN]}', "is no time"),
        ('{"unit": "us", "rows": [[1, 2, 3, 4, 5]]}', "a row is"),
        ('{"unit": "us", "rows": [["x", 2, "a", 4]]}', "no whole number"),
        ("{", "is no JSON"),
        ("latency\n5\n", "must be a time with its unit.*found: latency"),
        ("a_us,b_us\n5,6\n", "one column must be a time"),
        ("time_us\nfast\n", "line 2: 'fast' is no time"),
        ("", "holds no times"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "t"
    path.write_text(text)
    with pytest.raises(FusionScopeError, match=says):
        read_timings(str(path))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FusionScopeError, match="cannot be opened"):
        read_timings(str(tmp_path / "none.json:split"))
