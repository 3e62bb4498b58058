"""Tuning tables: which path is taken where it was measured, inherited, or never measured; files; gates."""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch")

from fusionscope.fusion_runtime import tuning
from fusionscope.fusion_runtime.boundaries import ar_norm
from fusionscope.fusion_runtime.comm.single import SingleGroup
from fusionscope.fusion_runtime.context import DecodeContext, PathChoice
from fusionscope.fusion_runtime.decode import reference_ops
from fusionscope.fusion_runtime.errors import BadTuningTable
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import PartialSum
from fusionscope.fusion_runtime.paths.registry import forget_path, register_path
from fusionscope.fusion_runtime.paths.split import SplitPath
from fusionscope.fusion_runtime.tuning import Row, Table


def row(tokens, hidden=4096, tp=2, boundary="ar_norm", **us):
    return Row(boundary, hidden, tp, tokens, us)


TABLE = Table(
    "some GPU",
    [
        row(1, split=10.0, triton=5.0, flashinfer=5.5),
        row(16, split=10.0, triton=6.0, flashinfer=5.5),
        row(64, split=10.0, triton=9.9, flashinfer=12.0),
        row(1, hidden=7168, tp=4, split=10.0, triton=11.0),
    ],
)


@pytest.mark.parametrize(
    ("tokens", "hidden", "tp", "paths", "source"),
    [
        (1, 4096, 2, ("triton", "flashinfer"), "measured at 1 tokens, hidden 4096, tp 2"),
        (2, 4096, 2, ("flashinfer", "triton"), "measured at 16 tokens, hidden 4096, tp 2"),
        (16, 4096, 2, ("flashinfer", "triton"), "measured at 16 tokens, hidden 4096, tp 2"),
        # 1 % faster is not faster, and slower is never taken.
        (17, 4096, 2, (), "measured at 64 tokens, hidden 4096, tp 2"),
        (500, 4096, 2, (), "inherited from 64 tokens, hidden 4096, tp 2"),
        (1, 6144, 2, ("triton", "flashinfer"), "inherited from 1 tokens, hidden 4096, tp 2"),
        # The number of ranks comes before the hidden size.
        (1, 4096, 4, (), "inherited from 1 tokens, hidden 7168, tp 4"),
        (1, 4096, 8, (), "inherited from 1 tokens, hidden 7168, tp 4"),
    ],
)
def test_ranking(tokens, hidden, tp, paths, source):
    assert TABLE.ranking("ar_norm", tokens, hidden, tp) == tuning.Ranking(paths, source)


def test_between_two_numbers_of_tokens_a_path_is_faster_at_both():
    table = Table(
        "some GPU", [row(2, split=10.0, triton=5.0, inductor=12.0), row(4, split=10.0, triton=6.0, inductor=5.0)]
    )
    assert table.ranking("ar_norm", 4, 4096, 2).paths == ("inductor", "triton")
    assert table.ranking("ar_norm", 3, 4096, 2).paths == ("triton",)
    assert table.ranking("ar_norm", 1, 4096, 2).paths == ("triton",)
    assert table.ranking("ar_norm", 9, 4096, 2).paths == ("inductor", "triton")


def test_one_rank_and_several_say_nothing_about_each_other():
    alone = Table("some GPU", [row(1, tp=1, split=10.0, triton=5.0)])
    assert TABLE.ranking("ar_norm", 1, 4096, 1).paths == () and "--tp 1" in TABLE.ranking("ar_norm", 1, 8, 1).source
    assert alone.ranking("ar_norm", 1, 4096, 2).paths == ()
    assert alone.ranking("ar_norm", 1, 8192, 1).paths == ("triton",)


def test_rows_of_emulated_ranks_say_so():
    table = Table("some GPU", [Row("mhc_post", 64, 4, 1, {"split": 2.0, "triton": 1.0}, emulated=True)])
    assert table.ranking("mhc_post", 1, 64, 4).source == "measured at 1 tokens, hidden 64, tp 4 (emulated ranks)"


def test_the_ranks_must_have_one_table(measured):
    from fusionscope.fusion_runtime.paths.auto import AutoPath

    told = []
    for rows in ([row(1, split=1.0, triton=2.0)], [row(1, triton=2.0, split=1.0)], [row(1, split=1.0, triton=0.5)]):
        measured(*rows)
        told.append(AutoPath().settings())
    assert told[0] == told[1] != told[2]


def test_nothing_measured_means_split_and_says_what_to_run():
    ranking = TABLE.ranking("mhc_post", 1, 4096, 2)
    assert ranking.paths == () and "fusionscope tune" in ranking.source and "some GPU" in ranking.source
    assert Table("").ranking("ar_norm", 1, 8, 1).paths == ()


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (TABLE.rows[:3], "fuse up to 16 tokens (triton or flashinfer, 1.82 to 2.00 x split)"),
        (TABLE.rows[:2], "fuse at all 2 sizes (triton or flashinfer, 1.82 to 2.00 x split)"),
        (TABLE.rows[3:], "do not fuse at 1 tokens or any measured"),
        ([row(1, split=1.0, triton=2.0), row(8, split=2.0, triton=1.0)], "do not fuse at 1 tokens, fuse at [8]"),
    ],
)
def test_gate(rows, said):
    assert tuning.gate(rows) == said


def test_gates_name_what_they_hold_for():
    assert TABLE.gates()[0].startswith("ar_norm, hidden 4096, tp 2: fuse up to 16")


def test_a_table_survives_its_file(tmp_path):
    table = Table("some GPU", list(TABLE.rows), {"torch": "2.11"})
    tuning.write(table, tmp_path / "a" / "t.json")
    assert tuning.read(tmp_path / "a" / "t.json", "some GPU") == table
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["t.json"]


@pytest.mark.parametrize("text", ["", "[]", '{"gpu": "x"}', '{"gpu": "x", "rows": [{"what": 1}]}'])
def test_a_file_that_is_no_table(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(BadTuningTable, match="fusionscope tune"):
        tuning.read(tmp_path / "t.json")


def test_a_row_without_split_or_another_gpu(tmp_path):
    path = tmp_path / "t.json"
    tuning.write(Table("some GPU", [row(1, triton=1.0)]), path)
    with pytest.raises(BadTuningTable, match="without split"):
        tuning.read(path)
    tuning.write(Table("some GPU", [row(1, split=1.0)]), path)
    with pytest.raises(BadTuningTable, match="measured on some GPU and this is another"):
        tuning.read(path, "another")


def test_own_rows_come_before_those_of_the_package(tmp_path, monkeypatch):
    shipped, own = tmp_path / "shipped", tmp_path / "own.json"
    monkeypatch.setattr(tuning, "SHIPPED", shipped)
    monkeypatch.setattr(tuning, "own_path", lambda gpu: own)
    assert tuning.load("Some GPU 1") == Table("Some GPU 1")
    tuning.write(Table("Some GPU 1", [row(1, split=1.0), row(2, split=1.0)]), shipped / "some_gpu_1.json")
    tuning.write(Table("Some GPU 1", [row(1, split=3.0)]), own)
    assert [(r.tokens, r.us["split"]) for r in tuning.load("Some GPU 1").rows] == [(1, 3.0), (2, 1.0)]


def test_a_table_that_was_named_must_be_there(tmp_path, monkeypatch):
    monkeypatch.setenv(tuning.ENVIRONMENT, str(tmp_path / "tabel.json"))
    with pytest.raises(BadTuningTable, match=r"FUSIONSCOPE_TUNING names .*tabel.json, which is not there"):
        tuning.load("Some GPU 1")
    tuning.write(Table("Some GPU 1", [row(1, split=3.0)]), tmp_path / "tabel.json")
    assert tuning.load("Some GPU 1").rows


def test_tables_that_come_with_the_package_can_be_read():
    for path in tuning.SHIPPED.glob("*.json"):
        table = tuning.read(path)
        assert path.stem == tuning.slug(table.gpu) and table.rows and table.measured
        assert json.loads(path.read_text())["gpu"] == table.gpu


@pytest.fixture
def measured(monkeypatch):
    def put(*rows):
        monkeypatch.setattr(tuning, "of_this_machine", lambda: Table("cpu", rows))

    return put


def taken(paths="ar_norm=auto"):
    group = SingleGroup()
    ctx = DecodeContext(group, reference_ops, PathChoice.parse(paths))
    x, residual = torch.randn(2, 64), torch.randn(2, 64)
    norm = Norm(torch.randn(64), 1e-5)
    got = ar_norm.run(PartialSum(x, group), residual, norm, subtype="residual", layer=0, ctx=ctx)
    want = ar_norm.reference([x], residual, norm)
    torch.testing.assert_close(got[0], want[0])
    (site,) = ctx.recorder.rows
    return site.path, site.declined


class Mine(SplitPath):
    name = "mine"


@pytest.fixture
def mine():
    register_path("mine", Mine)
    yield
    forget_path("mine")


def test_auto_takes_what_was_fastest(measured, mine):
    measured(row(4, hidden=64, tp=1, split=9.0, flashinfer=2.0, mine=3.0))
    path, declined = taken()
    assert path == "mine" and declined.startswith("flashinfer: ")


def test_auto_leaves_out_a_path_that_is_not_here(measured):
    measured(row(4, hidden=64, tp=1, split=9.0, mine=3.0))
    assert taken() == ("split", "")


def test_auto_never_takes_what_lost_and_falls_back_in_order(measured, mine):
    measured(row(4, hidden=64, tp=1, split=9.0, mine=10.0))
    assert taken() == ("split", "")
    measured(row(4, hidden=64, tp=1, split=9.0, flashinfer=3.0, aiter=2.0))
    path, declined = taken()
    assert path == "split"
    assert declined.index("aiter:") < declined.index("flashinfer:")


def test_auto_where_nothing_was_measured(measured):
    measured()
    assert taken() == ("split", "")
