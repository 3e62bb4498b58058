from __future__ import annotations

from pathlib import Path

import pytest
from small_inputs import BENCH

from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.readers.bench_csv import bench_row, read_bench


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "bench.csv"
    path.write_text(BENCH, encoding="utf-8")
    return path


def test_the_most_trusted_setting_of_a_batch_counts(table: Path) -> None:
    rows = read_bench(table)
    assert len(rows) == 4
    found = bench_row(rows, 4, table)
    assert (found.setting, found.fused_ns, found.split_ns) == ("in-context", 8_000, None)
    assert bench_row(rows[:3], 4, table).setting == "isolated-cold"
    assert bench_row(rows, 1, table).split_ns == 12_500


def test_one_of_several_fused_paths_is_chosen_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text(
        "tokens,split_us,fused_us,setting,path\n4,6,4,in-context,triton\n4,6,5,in-context,mine\n1,6,3,in-context,mine\n"
    )
    rows = read_bench(path)
    assert bench_row(rows, 1, path).path == "mine"
    assert [bench_row(rows, 4, path, name).fused_ns for name in ("triton", "mine")] == [4_000, 5_000]
    with pytest.raises(FusionScopeError, match=r"several fused paths \(mine, triton\): choose one with --from-path"):
        bench_row(rows, 4, path)
    with pytest.raises(FusionScopeError, match="no path other: it has mine, triton"):
        bench_row(rows, 4, path, "other")


def test_no_batch_is_interpolated(table: Path) -> None:
    with pytest.raises(FusionScopeError, match=r"no row for 2 tokens \(it has 1, 4\)"):
        bench_row(read_bench(table), 2, table)
    with pytest.raises(FusionScopeError, match="does not know its batch"):
        bench_row(read_bench(table), 0, table)


@pytest.mark.parametrize(
    "text,told",
    [
        ("tokens,fused_us\n1,2\n", "no column split_us, setting"),
        ("tokens,split_us,fused_us,setting\n1,2,-3,isolated\n", "line 2: fused_us is a time in us above 0"),
        ("tokens,split_us,fused_us,setting\n1,2,nan,isolated\n", "fused_us is a time in us above 0, not 'nan'"),
        ("tokens,split_us,fused_us,setting\none,2,3,isolated\n", "tokens is a whole number, not 'one'"),
        ("tokens,split_us,fused_us,setting\n1,2,3,warm\n", "the setting 'warm' is not known"),
    ],
)
def test_a_bad_table_is_refused_with_the_place(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FusionScopeError, match=told):
        read_bench(path)
    with pytest.raises(FusionScopeError, match="cannot be read"):
        read_bench(tmp_path / "none.csv")
