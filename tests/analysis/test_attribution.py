from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from literal_traces import AR, FUSED_RUN, GEMM, NORM, SPLIT, kernels

from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.tables import report
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace, table


def rows(found: Analysed) -> dict[str, dict[str, object]]:
    told = report(found.attribution, found.forwards)
    return {row["boundary"]: row for row in told["boundaries"]}  # type: ignore[attr-defined]


def test_rules_find_split_and_fused_sites(made: Callable[..., Analysed]) -> None:
    split, fused = rows(made([SPLIT] * 3))["ar_norm"], rows(made([FUSED_RUN]))["ar_norm"]
    assert (split["sites"], split["launches"], split["kernel_time_ns"], split["rung"]) == (2, 4, 10_000, 4)
    assert (fused["sites"], fused["launches"], fused["kernel_time_ns"]) == (2, 2, 8_000)
    assert split["share"] == pytest.approx(10_000 / 30_500)


def test_every_kind_is_listed_also_with_no_sites(made: Callable[..., Analysed]) -> None:
    found = rows(made([SPLIT]))
    assert {k: v["sites"] for k, v in found.items()} == {
        "ar_norm": 2, "moe_finalize": 0, "mhc_post": 0, "mhc_post_pre": 0, "add_norm": 0,
    }  # fmt: skip


def test_a_finalize_contains_its_norm_site(made: Callable[..., Analysed]) -> None:
    found = rows(made([[("_moe_sum_reduce_kernel", 0, 5), (AR, 6, 5), (NORM, 12, 5), (GEMM, 20, 5), (AR, 30, 5),
                        (NORM, 36, 5)]]))  # fmt: skip
    assert found["moe_finalize"]["sites"] == 1 and found["ar_norm"]["sites"] == 2
    assert found["ar_norm"]["nested"] == {"moe_finalize": 1} and found["moe_finalize"]["nested"] == {}


def test_one_launch_can_be_a_site_of_two_kinds(made: Callable[..., Analysed]) -> None:
    found = rows(made([[(GEMM, 0, 5), ("moe_finalize_ar_hc_post_oneshot_kernel", 6, 5)]]))
    assert found["moe_finalize"]["sites"] == found["mhc_post"]["sites"] == 1
    assert found["mhc_post"]["nested"] == {"moe_finalize": 1} and found["mhc_post"]["subtypes"] == {"ffn_exit": 1}


def test_the_half_layer_decides_the_subtype_of_an_mhc_post(made: Callable[..., Analysed]) -> None:
    attention = [("mla_decode_kernel", 0, 5), (GEMM, 6, 5), (AR, 12, 5), ("mhc_post_kernel", 18, 5)]
    ffn = [("silu_mul_clamp_kernel", 24, 5), (GEMM, 30, 5), (AR, 36, 5), ("mhc_post_kernel", 42, 5)]
    found = rows(made([[*attention, *ffn]]))
    assert found["mhc_post"]["subtypes"] == {"attn_exit": 1, "ffn_exit": 1}


def test_an_all_reduce_alone_is_no_site_and_one_rank_has_add_norm(made: Callable[..., Analysed]) -> None:
    found = rows(made([[(AR, 0, 5), (GEMM, 6, 5), (NORM, 12, 5)]]))
    assert found["ar_norm"]["sites"] == 0 and found["add_norm"]["sites"] == 1


def test_neighbours_are_neighbours_on_one_stream(made: Callable[..., Analysed]) -> None:
    found = rows(made([[(AR, 0, 5, 7), (GEMM, 1, 3, 8), (NORM, 6, 5, 7)]]))
    assert found["ar_norm"]["sites"] == 1
    assert rows(made([[(AR, 0, 5, 7), (NORM, 6, 5, 8)]]))["ar_norm"]["sites"] == 0


def provenance(nodes: list[list[int]]) -> pd.DataFrame:
    flat = [(site, node) for site, group in enumerate(nodes) for node in group]
    data = {"rank": 0, "boundary": "ar_norm", "site": [s for s, _ in flat], "node": [n for _, n in flat], "layer": 4}
    return table("sites", pd.DataFrame(data))


def test_provenance_wins_over_names() -> None:
    trace = Trace(kernels=kernels([SPLIT] * 2), sites=provenance([[1, 2]]))
    found = rows(analyse(Run(RunInfo(), trace, Path())))["ar_norm"]
    assert (found["sites"], found["rung"], found["launches"]) == (1, 1, 2)
    by_rules = rows(analyse(Run(RunInfo(), trace, Path()), rung=4))["ar_norm"]
    assert (by_rules["sites"], by_rules["rung"]) == (2, 4)


def test_provenance_of_another_graph_is_said(made: Callable[..., Analysed]) -> None:
    trace = Trace(kernels=kernels([SPLIT]), sites=provenance([[1, 2], [90, 91]]))
    told = report(analyse(Run(RunInfo(), trace, Path())).attribution, [])
    assert "1 sites of the provenance have no launch" in str(told["warnings"])


def test_coverage_sums_to_one_and_names_what_is_unknown(made: Callable[..., Analysed]) -> None:
    found = made([[*SPLIT, ("mystery_kernel", 40_000, 10_000)]])
    told = report(found.attribution, found.forwards)
    coverage = told["coverage"]
    assert sum(coverage["by_rung"].values()) == pytest.approx(1)  # type: ignore[index]
    assert coverage["by_rung"]["none"] == pytest.approx(0.25)  # type: ignore[index]
    assert coverage["unattributed"] == [  # type: ignore[index]
        {"name": "mystery_kernel", "launches": 1, "kernel_time_ns": 10_000}
    ]


def test_site_filters(made: Callable[..., Analysed]) -> None:
    trace = Trace(kernels=kernels([SPLIT]), sites=provenance([[1, 2], [4, 5]]))
    run = Run(RunInfo(), trace, Path())
    assert len(analyse(run, sites="site>=1").attribution.sites["ar_norm"]) == 1
    assert len(analyse(run, sites="layer>=4,ar_norm").attribution.sites["ar_norm"]) == 2
    assert len(analyse(run, sites="layer<4").attribution.sites["ar_norm"]) == 0
    for bad in ("colour=red", "site>>1", "site>=x", "subtype>a"):
        with pytest.raises(FusionScopeError, match="--sites"):
            analyse(run, sites=bad)
    with pytest.raises(FusionScopeError, match="--provenance"):
        analyse(run, sites="layer>=1", rung=4)


def test_a_users_boundary_from_toml(tmp_path: Path) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text(
        """
        [[role]]
        role = "rope"
        pattern = "rotary"
        [[boundary]]
        name = "rope_kv"
        split = [{ sequence = ["rope", { name = "store_kv" }] }]
        fused = [{ sequence = [{ name = "rope_store" }], subtype = "x" }]
        """
    )
    trace = Trace(kernels=kernels([[("rotary_embedding", 0, 3), ("store_kvcache", 4, 2), ("rope_store", 7, 4)]]))
    found = rows(analyse(Run(RunInfo(), trace, Path()), rules=[rules]))["rope_kv"]
    assert (found["sites"], found["launches"], found["kernel_time_ns"]) == (2, 3, 9)


@pytest.mark.parametrize(
    "text,says",
    [
        ("[[boundary]", "not valid TOML"),
        ("[[boundary]]\nname = 'a b'\nsplit=[{sequence=['x']}]", "one word"),
        ("[[boundary]]\nname = 'a'", "neither 'split' nor 'fused'"),
        ("[[boundary]]\nname = 'a'\nsplit=[{sequence=[]}]", "not optional"),
        ("[[boundary]]\nname = 'a'\nsplit=[{sequence=[{name='('}]}]", "no regular expression"),
        ("[[boundary]]\nname = 'a'\nmerged=[]", "unknown key"),
        ("[[role]]\nrole = 'a'", "without 'pattern'"),
    ],
)
def test_bad_rules_are_named(text: str, says: str, tmp_path: Path) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text(text)
    with pytest.raises(FusionScopeError, match=says) as caught:
        analyse(Run(RunInfo(), Trace(kernels=kernels([SPLIT])), Path()), rules=[rules])
    assert "mine.toml" in str(caught.value)


def test_a_missing_rank_and_kind_are_named(made: Callable[..., Analysed]) -> None:
    run = made([SPLIT]).run
    with pytest.raises(FusionScopeError, match="--rank"):
        analyse(run, rank=3)
    with pytest.raises(FusionScopeError, match="--forward"):
        analyse(run, forward="zzz")
    with pytest.raises(FusionScopeError, match="--provenance"):
        analyse(run, rung=1)


def ranged(names: list[str], spans: list[tuple[str, int, int, int]]) -> Run:
    """Eager kernels that the host issued at 0, 10, 20, … ns on thread 5, long before they ran, and ranges."""
    rows = kernels([[(name, 1000 + 10 * k, 5) for k, name in enumerate(names)]], nodes=False)
    rows = rows.assign(replay=-1, correlation=range(len(names)))
    calls = table(
        "launches",
        pd.DataFrame(
            {
                "rank": 0, "process": 1, "thread": 5, "name": "cudaLaunchKernel", "is_graph": False,
                "start_ns": range(0, 10 * len(names), 10), "end_ns": 0, "correlation": range(len(names)),
            }
        ),
    )  # fmt: skip
    ranges = pd.DataFrame(spans, columns=["name", "start_ns", "end_ns", "thread"]).assign(rank=0, process=1)
    return Run(RunInfo(), Trace(kernels=rows, launches=calls, ranges=table("ranges", ranges)), Path())


def test_ranges_hold_the_kernels_that_were_issued_in_them() -> None:
    spans = [
        ("fusionscope.site|mine|exit|3|triton", 10, 30, 5),
        ("fusionscope.site|mine||x|y", 0, 30, 5),
        ("fusionscope.site|mine", 0, 30, 5),
        ("fusionscope.site|other||-1|", 0, 30, 6),
    ]
    found = analyse(ranged(["a", "b", "c", "d"], spans)).attribution
    assert [(s.columns, s.subtype, s.layer, s.path, s.rung) for s in found.sites["mine"]] == [
        ((1, 2), "exit", 3, "triton", 2)
    ]
    assert "other" not in found.sites


def captures(*graphs: list[list[int]]) -> pd.DataFrame:
    parts = [provenance(nodes).assign(graph=-2 - k) for k, nodes in enumerate(graphs)]
    return table("sites", pd.concat([p.astype({"boundary": object}) for p in parts], ignore_index=True))


def test_of_several_captured_graphs_the_one_that_fits_is_used() -> None:
    right, wrong = [[1, 2], [4, 5]], [[0, 1], [3, 4], [90, 91]]
    for order in ([right, wrong], [wrong, right], [wrong, right, right]):
        run = Run(RunInfo(), Trace(kernels=kernels([SPLIT] * 2), sites=captures(*order)), Path())
        found = analyse(run).attribution
        assert ([s.columns for s in found.sites["ar_norm"]], found.rungs["ar_norm"]) == ([(1, 2), (4, 5)], 1)
        assert found.warnings == ()
    shorter = Run(RunInfo(), Trace(kernels=kernels([SPLIT] * 2), sites=captures([[1, 2]], [[1, 2], [4, 5]])), Path())
    assert len(analyse(shorter).attribution.sites["ar_norm"]) == 2
    run = Run(RunInfo(), Trace(kernels=kernels([SPLIT] * 2), sites=captures([[4, 5]], [[5]])), Path())
    found = analyse(run).attribution
    assert found.rungs["ar_norm"] == 4 and "2 of the 2 graphs" in found.warnings[0]
    without = Run(RunInfo(), Trace(kernels=kernels([SPLIT] * 2, nodes=False), sites=captures(wrong, right)), Path())
    assert analyse(without).attribution.rungs["ar_norm"] == 3
