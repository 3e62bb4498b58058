from __future__ import annotations

import difflib
import itertools
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from literal_traces import AR, GEMM, NORM, SPLIT, Launch, kernels

from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.ordinal import align
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.readers import read_trace
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace, table


def sites_table(nodes: Sequence[Sequence[int]], kind: str = "ar_norm") -> pd.DataFrame:
    flat = [(site, node) for site, group in enumerate(nodes) for node in group]
    data = {"rank": 0, "boundary": kind, "site": [s for s, _ in flat], "node": [n for _, n in flat]}
    return table("sites", pd.DataFrame(data))


def run_of(replays: Sequence[Sequence[Launch]], nodes: bool = False, **tables: pd.DataFrame) -> Run:
    return Run(RunInfo(), Trace(kernels=kernels(replays, nodes=nodes), **tables), Path())  # type: ignore[arg-type]


def placed(found: Analysed, kind: str = "ar_norm") -> tuple[list[tuple[int, ...]], int]:
    return [s.columns for s in found.attribution.sites[kind]], found.attribution.rungs[kind]


def test_without_node_ids_the_place_in_the_replay_is_the_node() -> None:
    found = analyse(run_of([SPLIT] * 3, sites=sites_table([[1, 2]])))
    assert placed(found) == ([(1, 2)], 3)
    assert {s.rung for s in found.attribution.sites["ar_norm"]} == {3}
    assert found.attribution.coverage()["3"] == pytest.approx(5_000 / 30_000)
    assert placed(analyse(found.run, rung=3)) == ([(1, 2)], 3)
    assert placed(analyse(found.run, rung=4)) == ([(1, 2), (4, 5)], 4)


def test_copies_of_the_replay_are_nodes_too() -> None:
    trace = kernels([[("Memcpy DtoD", 0, 50), *((n, s + 100, d) for n, s, d in SPLIT)]] * 2, nodes=False)
    trace["kind"] = trace["kind"].cat.add_categories("memcpy").mask(trace["name"] == "Memcpy DtoD", "memcpy")
    run = Run(RunInfo(), Trace(kernels=table("kernels", trace), sites=sites_table([[2, 3]])), Path())
    found = analyse(run)
    assert found.forward.launches == 6
    assert placed(found) == ([(1, 2)], 3)


def test_a_replay_with_a_dropped_launch_is_told_of_and_left_out() -> None:
    dropped = [*SPLIT[:2], *SPLIT[3:]]
    found = analyse(run_of([SPLIT, dropped, SPLIT, SPLIT], sites=sites_table([[1, 2], [4, 5]])))
    assert (found.forward.launches, found.forward.replays) == (6, 3)
    assert placed(found) == ([(1, 2), (4, 5)], 3)
    [told] = found.attribution.warnings
    assert "1 of 4 replays of this graph lack 1 of 6 launches (the first: fused_add_rmsnorm_kernel, launch 2)" in told
    # The same with node ids, and no such word where the shorter replay is another program.
    assert len(analyse(run_of([SPLIT, dropped, SPLIT], nodes=True)).attribution.warnings) == 1
    other = [*SPLIT[:2], ("mystery", 12_200, 10), *SPLIT[4:]]
    assert analyse(run_of([SPLIT, other, SPLIT])).attribution.warnings == ()


def test_copies_that_differ_between_replays_refuse_the_place() -> None:
    one = kernels([SPLIT] * 2, nodes=False)
    more = one.iloc[[0]].assign(kind="memset", name="Memset", raw_name="Memset", start_ns=5, replay=1)
    both = pd.concat([one.astype({c: "object" for c in ("kind", "name", "raw_name")}), more.astype(object)])
    run = Run(RunInfo(), Trace(kernels=table("kernels", both), sites=sites_table([[1, 2]])), Path())
    found = analyse(run)
    assert placed(found)[1] == 4 and "cannot be placed, as its replays do not hold" in found.attribution.warnings[0]
    with pytest.raises(FusionScopeError, match="its replays do not hold"):
        analyse(run, rung=3)


def test_several_streams_refuse_the_place() -> None:
    two = [(n, s, d, 7 + k % 2) for k, (n, s, d) in enumerate(SPLIT)]
    found = analyse(run_of([two, two], sites=sites_table([[1, 2]])))  # type: ignore[list-item]
    assert placed(found)[1] == 4 and "2 streams" in found.attribution.warnings[0]


def test_places_that_the_names_contradict_are_told_of() -> None:
    found = analyse(run_of([SPLIT] * 2, sites=sites_table([[3]])))
    assert "1 of 1 ar_norm sites by place hold none of the kernels" in found.attribution.warnings[0]


def test_a_siblings_sites_are_taken_over_by_place() -> None:
    sibling = run_of([SPLIT] * 3, nodes=True, sites=sites_table([[1, 2], [4, 5]], "mine"))
    same = analyse(run_of([SPLIT] * 2), like=sibling)
    assert placed(same, "mine") == ([(1, 2), (4, 5)], 3)
    # Every replay lacks the first norm: its site is lost, and the other one has moved.
    lacking = analyse(run_of([[*SPLIT[:2], *SPLIT[3:]]] * 2), like=sibling)
    assert placed(lacking, "mine") == ([(3, 4)], 3)
    assert "1 sites of the sibling have a launch without a partner" in lacking.attribution.warnings[0]
    other = analyse(run_of([[("x", 0, 1), ("y", 2, 1)]] * 2), like=sibling)
    assert "cannot be placed, as the two launch other kernels" in other.attribution.warnings[0]
    own = analyse(run_of([SPLIT] * 2, sites=sites_table([[1, 2]])), like=sibling)
    assert placed(own) == ([(1, 2)], 3)


@given(st.text("abc", max_size=14), st.text("abc", max_size=14))
def test_align_is_the_longest_common_subsequence(first: str, second: str) -> None:
    pairs = align(first, second, most=100)
    assert pairs is not None
    assert all(first[a] == second[b] for a, b in pairs)
    assert all(p[0] < q[0] and p[1] < q[1] for p, q in itertools.pairwise(pairs))
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            table[i + 1][j + 1] = table[i][j] + 1 if a == b else max(table[i][j + 1], table[i + 1][j])
    assert len(pairs) == table[-1][-1]


def test_align_keeps_the_layers_apart() -> None:
    """In a stream that repeats itself a lost launch must not shift everything by a layer."""
    whole = [GEMM, AR, NORM] * 100
    part = [*whole[:151], *whole[152:]]
    assert align(part, whole) == [(k, k if k < 151 else k + 1) for k in range(299)]
    assert align(part, whole, most=0) is None
    assert difflib.SequenceMatcher(None, whole, part, autojunk=False).ratio() > 0.99


@pytest.mark.parametrize(
    "file,kind,more",
    [
        ("kineto_mi300x_sglang_decode.json.gz", "qk_norm_rope", 36),
        ("kineto_mi300x_sglang_decode.json.gz", "add_norm", 72),
        ("kineto_mi300x_vllm_decode_full_graph.json.gz", "rope_kv", 24),
        ("rpd_mi300_vllm_decode.rpd.gz", "rope_kv", 32),
    ],
)
def test_mi300x_provenance_by_place_agrees_with_the_names(file: str, kind: str, more: int) -> None:
    sample = Path(__file__).parents[3] / "shared" / "samples" / file
    if not sample.is_file():
        pytest.skip("the sample traces (../shared/samples) are not here")
    trace = read_trace(sample)
    named = analyse(Run(RunInfo(), trace, Path()), rules=["attention"])
    assert placed(named, kind)[1] == 4 and len(placed(named, kind)[0]) == more
    # The node of a launch is its place among all work of its graph launch, copies too.
    first = trace.kernels.loc[named.forward.rows[0][0], "replay"]
    rows = trace.kernels[trace.kernels["replay"] == first].sort_values("start_ns", kind="stable")
    place = {int(label): k for k, label in enumerate(rows.index)}
    nodes = [[place[int(named.forward.rows[0][c])] for c in s.columns] for s in named.attribution.sites[kind]]
    known = Trace(kernels=trace.kernels, launches=trace.launches, ranges=trace.ranges, sites=sites_table(nodes, kind))
    found = analyse(Run(RunInfo(), known, Path()), rules=["attention"])
    assert placed(found, kind) == (placed(named, kind)[0], 3)
    like = analyse(Run(RunInfo(), trace, Path()), rules=["attention"], like=Run(RunInfo(), known, Path()), rung=3)
    assert placed(like, kind) == (placed(named, kind)[0], 3)
