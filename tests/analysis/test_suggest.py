"""Chains that repeat, on literal traces and samples, and that their TOML finds the same launches again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from literal_traces import AR, GEMM, NORM, Launch

from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.suggest import Suggestion, suggest
from fusionscope.profiler.importing import import_files
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run

ODD = 'void odd<"a\\b", (int)7>(char const*) [clone \x7f]'


def row(*names: str, gap: int = 100) -> list[Launch]:
    rows: list[Launch] = []
    at = 0
    for name in names:
        time = 10_000 if name == GEMM else 2_000
        rows.append((name, at, time))
        at += time + gap
    return rows


def again(run: Analysed, found: Sequence[Suggestion], folder: Path) -> None:
    """The TOML of all suggestions as --rules gives the same launches."""
    rules = folder / "chains.toml"
    rules.write_text("\n".join(s.toml for s in found), encoding="utf-8")
    read = analyse(run.run, rank=run.forward.rank, rules=[rules])
    for one in found:
        there = [s.columns for s in read.attribution.sites[one.name]]
        assert there == sorted(s.columns for s in one.sites), one.name


def test_a_chain_between_gemms_that_repeats(made: Callable[..., Analysed], tmp_path: Path) -> None:
    layer = (GEMM, AR, NORM, "quant_kernel")
    run = made([row(*layer, *layer, *layer, *layer, GEMM)] * 3)
    (found,) = suggest(run)
    assert found.kernels == (AR, NORM, "quant_kernel") and len(found.sites) == 4
    # 6 us of launches, and of four gaps a layer one stays.
    assert found.ceiling_ns == 4 * (6_000 + 3 * 100) and found.known == {"ar_norm": 4}
    assert found.share == pytest.approx(4 * 6_000 / run.forward.span[0])
    assert found.document(run.step_ns())["says"] == "adjacent; data flow not known"
    again(run, [found], tmp_path)


def test_a_shorter_chain_is_told_where_it_has_more_sites(made: Callable[..., Analysed], tmp_path: Path) -> None:
    layers = [n for k in range(6) for n in ((GEMM, AR, NORM, "quant_kernel") if k < 3 else (GEMM, AR, NORM))]
    run = made([row(*layers, GEMM)] * 2)
    found = suggest(run)
    assert [(len(s.kernels), len(s.sites)) for s in found] == [(2, 6), (3, 3)]
    again(run, found, tmp_path)


def test_what_does_not_repeat_or_is_large_is_no_chain(made: Callable[..., Analysed]) -> None:
    twice = (GEMM, AR, NORM) * 2
    assert suggest(made([row(*twice, GEMM)])) == []
    # A kernel that nobody knows and that takes as long as a GEMM ends a chain.
    rows: list[Launch] = []
    for k in range(5):
        at = 60_000 * k
        large = "huge" if k % 2 else "ncclDevKernel_AllGather_RING_LL"
        rows += [("a_kernel", at, 500), (large, at + 600, 50_000), ("b_kernel", at + 50_700, 500)]
    found = suggest(made([rows]))
    assert [s.kernels for s in found] == [("b_kernel", "a_kernel")]


def test_names_that_need_quoting_are_found_again(made: Callable[..., Analysed], tmp_path: Path) -> None:
    other = ODD.replace("7", "8")
    layer = (GEMM, ODD, "x::y<int>", GEMM, other, "x::y<float>")
    run = made([row(*layer * 3)] * 2)
    found = suggest(run)
    assert {s.kernels for s in found} == {(ODD, "x::y<int>"), (other, "x::y<float>")}
    again(run, found, tmp_path)


def test_a_chain_of_one_kernel_again_and_again_does_not_overlap_itself(
    made: Callable[..., Analysed], tmp_path: Path
) -> None:
    run = made(
        [row(GEMM, "s_kernel", "s_kernel", "s_kernel", GEMM, "s_kernel", "s_kernel", GEMM, "s_kernel", "s_kernel")]
    )
    found = suggest(run)
    assert [(s.kernels, len(s.sites)) for s in found] == [(("s_kernel", "s_kernel"), 3)]
    again(run, found, tmp_path)


@pytest.mark.parametrize(
    "file,kind,sites",
    [
        ("kineto_b200_eager_tp8.json.gz", "ar_norm", 70),
        ("kineto_mi300x_sglang_decode.json.gz", "", 0),
        ("kineto_mi300x_vllm_decode_full_graph.json.gz", "", 0),
        ("h200_ar_norm/split.nsys.sqlite", "ar_norm", 44),
        # Kernels that take long at some places and are short at others.
        ("kineto_v100_graphs_rank1of2.json.gz", "", 0),
    ],
)
def test_samples_round_trip(samples: Path, tmp_path: Path, file: str, kind: str, sites: int) -> None:
    run = analyse(Run(RunInfo(), import_files([samples / file]), Path()))
    found = suggest(run)
    assert found and found == sorted(found, key=lambda s: -s.ceiling_ns)
    assert all(0 < s.ceiling_ns < run.step_ns() for s in found)
    assert not kind or max(s.known.get(kind, 0) for s in found) >= sites
    again(run, found, tmp_path)
