"""What the tool says of fusions whose numbers are public: tests/data/public_numbers.json names each source."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from literal_traces import AR, GEMM, NORM, Launch, kernels, timings

from fusionscope.analysis import accuracy, noise
from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.baselines import baselines
from fusionscope.analysis.batches import LOSES, WINS, BatchRow, gate
from fusionscope.analysis.compare import compare
from fusionscope.analysis.estimate import Fused, of_target
from fusionscope.analysis.serving import StepSaving, serving
from fusionscope.analysis.sites import Site
from fusionscope.analysis.target import Target, target
from fusionscope.analysis.verdict import NOT_MEASURABLE, SLOWER, WORTH_MERGING, judge
from fusionscope.profiler.readers.serving_json import ServingRun
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace

PUBLIC: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "public_numbers.json").read_text(encoding="utf-8")
)
Make = Callable[..., Analysed]
REDUCE, POST, BOTH = "cross_device_reduce_1stage", "mhc_post_kernel", "allreduce_mhc_post_large_m_kernel"


def chain(*launches: tuple[str, float], gap: int = 0) -> list[Launch]:
    """Launches (name, us) one after another."""
    rows: list[Launch] = []
    at = 0
    for name, us in launches:
        rows.append((name, at, round(1000 * us)))
        at += round(1000 * us) + gap
    return rows


def of(run: Analysed, kind: str) -> Target:
    return target(run.attribution, run.schedule(), kind, "", run.untraced)


def test_every_fact_has_its_source() -> None:
    assert all(fact["source"] for name, fact in PUBLIC.items() if name != "what")


def test_sglang_37104_is_not_measurable(made: Make) -> None:
    fact = PUBLIC["sglang_37104"]
    core, boundary = 1000 * fact["core_ms"], fact["boundary_us"]
    run = made([chain((GEMM, core - boundary), (AR, boundary / 2), (NORM, boundary / 2))] * 4)
    step = noise.Baseline(1000 * core, (1000 * core, 1000 * core), 1000 * core * fact["noise_part"], 5, 1, "untraced")
    found = of_target(
        target(run.attribution, run.schedule(), "ar_norm", "", step), Fused(speedup=fact["speedup"])
    )  # fmt: skip
    assert found.share == pytest.approx(fact["share"], rel=0.01)
    assert f"{found.amdahl_gain:.2%}" == "0.17%" and found.saving_ns == pytest.approx(5_000, rel=0.01)
    assert found.verdict.class_ == NOT_MEASURABLE
    assert "0.1 times the noise floor: no measurable difference" in found.verdict.quote


def forward(fact: dict[str, Any], fused: bool) -> list[Launch]:
    """1,664 launches with 45 sites; the split and the fused kernels differ by what the pull request saves."""
    saved = 1000 * (fact["kernel_time_ms"][0] - fact["kernel_time_ms"][1]) / fact["sites"]
    site = [(BOTH, 12.4 - saved)] if fused else [(REDUCE, 8.1), (POST, 4.3)]
    others = fact["launches"][0] - 2 * fact["sites"]
    each = (1000 * fact["kernel_time_ms"][0] - 12.4 * fact["sites"]) / others
    rows = [(GEMM, each)] * (others - 34 * fact["sites"])
    for _ in range(fact["sites"]):
        rows += [("silu_mul_clamp_kernel", each), *[(GEMM, each)] * 33, *site]
    return chain(*rows)


def test_the_rocm_pull_request_is_measurable() -> None:
    fact = PUBLIC["rocm_ar_mhc_post"]
    sides = []
    for fused in (False, True):
        rows = forward(fact, fused)
        span = rows[-1][1] + rows[-1][2]
        times = timings([[span + k, span + 2, span, span + 1] for k in range(4)])
        trace = Trace(kernels=kernels([rows] * 2, gap=20_000_000), timings=times)
        sides.append(analyse(Run(RunInfo(model="m", tp=4, batch=4), trace, Path())))
    found = compare(*sides)
    assert [side.forward.launches for side in sides] == fact["launches"]
    assert found.fired is not None and (found.fired.sites, found.fired.boundary) == (45, "mhc_post")
    totals = [float(side.forward.kernel_time[0]) for side in sides]
    assert [round(t / 1e6, 2) for t in totals] == fact["kernel_time_ms"]
    inside = sum(row.difference_ns for row in found.rows if row.where)
    assert inside / 45 == pytest.approx(-3_780, abs=5) and inside == pytest.approx(totals[1] - totals[0], abs=1)
    assert f"{totals[1] / totals[0] - 1:.2%}" == "-1.74%"
    # One capture of each arm, as the pull request had: seen above what captures differ by, and worth several of them.
    assert found.measured is not None and found.measured.kind == "observed" and found.measured.above_noise
    assert found.measured.would_be == WORTH_MERGING
    assert accuracy.parse(f"gsm8k={fact['gsm8k']}").changed is False


def test_aiter_3791_graph_off_overstates_and_the_interval_holds_the_truth(made: Make) -> None:
    fact = PUBLIC["aiter_3791"]
    off, on = fact["graph_off_us"], fact["graph_on_us"]
    layer = [("silu_mul_clamp_kernel", 5.0), (REDUCE, on[0] - 4.3), (POST, 4.3)]
    found = of(made([chain(*layer * 45)] * 3), "mhc_post")
    plain = baselines(found, None, 1.0, 1000 * off[0], 1000 * off[1])
    truth = of_target(found, Fused(time_ns=1000 * on[1], source="candidate"))
    assert truth.saving_ns == pytest.approx(45 * 2_700, rel=1e-3)
    assert plain.isolated_difference_ns is not None
    assert plain.isolated_difference_ns / truth.saving_ns == pytest.approx(4.6, abs=0.05)
    # The fused time alone without a graph, corrected by the split kernels' times in both settings.
    guess = of_target(found, Fused(time_ns=1000 * off[1], source="isolated", split_ns=1000 * off[0]))
    low, high = guess.interval_ns
    assert low <= truth.saving_ns <= high


def test_vllm_57756_finds_the_moved_cost_and_keeps_the_controls() -> None:
    fact = PUBLIC["vllm_57756"]
    rng = np.random.default_rng(5)

    def side(which: int) -> Analysed:
        there = [(n, cells[which][0]) for n, cells in fact["kernels"].items() if cells[which][1]]
        # The published sums of a window, as one launch each, with half a percent of spread over windows.
        spread = 1 + rng.normal(0, 0.005, (9, len(there)))
        windows = [chain(*((n, us * d) for (n, us), d in zip(there, s, strict=True))) for s in spread]
        return analyse(Run(RunInfo(), Trace(kernels=kernels(windows, gap=1_000_000_000)), Path()))

    rows = {row.name: row for row in compare(side(0), side(1)).rows}
    assert {rows[n].status for n in fact["untouched"]} == {"untouched"}
    assert rows["_sparse_attn_decode_gfx950_partial_kernel"].status == "grown"
    assert rows["_hc_collapse_rms_norm_kernel"].status == "added"
    moved = sum(row.difference_ns for name, row in rows.items() if name not in fact["untouched"])
    assert moved / 1e6 == pytest.approx(fact["net_ms"], abs=0.3)
    gone = sum(row.difference_ns for row in rows.values() if row.status == "removed")
    # Who counts the removed kernels alone claims 15 % more than there is.
    assert gone / moved == pytest.approx(23.8 / 20.7, abs=0.02)


def test_vllm_56965_shows_no_measurable_difference() -> None:
    weights, changes = [], []
    for base, change, low, high in PUBLIC["vllm_56965"]["rows"]:
        step, half = 1e6 * base, (high - low) / 2
        # 30 pairs: a difference of 2.9 standard errors is seen in 80 % of cases, and half an interval is 2.05 of them.
        floor = step * half / 100 * (2.045 + 0.854) / 2.045
        interval = (step * low / 100, step * high / 100)
        found = judge(step * change / 100, interval, step, floor, kind="measured")
        assert found.class_ not in (WORTH_MERGING, SLOWER, "below_margin")
        weights.append(half**-2)
        changes.append(change)
    middle, half = float(np.average(changes, weights=weights)), sum(weights) ** -0.5
    together = judge(middle, (middle - half, middle + half), 100.0, half * (2.045 + 0.854) / 2.045, kind="measured")
    assert together.class_ == NOT_MEASURABLE


def test_gllm_264_serves_faster_than_its_forward_explains() -> None:
    fact = PUBLIC["gllm_264"]
    before, after = (1e6 * ms for ms in fact["gpu_ms"])
    saved = before - after
    arms = [[ServingRun("f", 1, tpot, None, None, None)] for tpot in fact["tpot_ms"]]
    # Not even a forward that takes no time explains it: 38.3 of 83.8 ms.
    (row,) = serving(*arms, {1: StepSaving(before, saved, (saved, saved), before)}).rows
    assert row.predicted == pytest.approx(15.6 / 83.8, rel=1e-6) and row.observed == pytest.approx(0.53, abs=0.005)
    assert row.ceiling == pytest.approx(38.3 / 83.8) and row.observed > row.ceiling
    assert row.says[0].startswith("This is larger than this fusion can explain: the ceiling is 45.7%")


def test_ninfer_67_stays_below_each_ceiling_and_a_share_overstates_it(made: Make) -> None:
    fact = PUBLIC["ninfer_67"]
    step = 1e6 / fact["tokens_per_second"]
    names = {name: node["us"] for name, node in fact["nodes"].items()}
    nodes = [name for name, node in fact["nodes"].items() for _ in range(node["per_step"])]
    rest = (step - sum(names[n] for n in nodes)) / len(nodes)
    run = made([chain(*((n, us) for node in nodes for n, us in ((GEMM, rest), (node, names[node]))))] * 2)
    order = run.forward.nodes["name"].astype(str).tolist()
    schedule = run.schedule()
    overstated = {}
    for name, node in fact["nodes"].items():
        sites = [Site("node", "", -1, (c,), 4) for c, n in enumerate(order) if n == name]
        found = Target(run.attribution, schedule, "node", "", sites, None, None)
        assert len(sites) == node["per_step"]
        measured = [1 - 1 / ratio for ratio in node["ratios"]]
        assert max(measured) < found.ceiling_ns / found.step_ns
        share = baselines(found, None, 0.0).share_discount_ns / found.step_ns
        overstated[name] = share / float(np.mean(measured))
    # Folding the router into a neighbour moves its work there: half of its share is five times what was gained.
    assert overstated["sparse_moe_d2_warp_kernel"] > 5 and overstated["sigmoid_mul"] < 1


def test_sglang_34019_gains_the_gaps_of_its_nodes_too(made: Make) -> None:
    fact = PUBLIC["sglang_34019"]
    nodes, gone = fact["nodes"][0], fact["nodes"][0] - fact["nodes"][1]
    # Sites of four launches of 3 us become one launch each, with the busy time that the pull request lost.
    sites = gone // 3
    gap = round(1e6 * fact["idle_ms"][0] / (nodes - 1))
    others = (1000 * fact["busy_ms"][0] - 12.0 * sites) / (nodes - 4 * sites)
    rows = [(GEMM, others)] * (nodes - 4 * sites - sites)
    for _ in range(sites):
        rows += [*[("small", 3.0)] * 4, (GEMM, others)]
    run = made([chain(*rows, gap=gap)])
    order = run.forward.nodes["name"].astype(str).to_numpy()
    small = np.flatnonzero(order == "small").reshape(sites, 4)
    places = [Site("mhc", "", -1, tuple(map(int, columns)), 4) for columns in small]
    found = Target(run.attribution, run.schedule(), "mhc", "", places, None, None)
    assert (len(order), found.gone(1)) == (nodes, gone)
    busy = 1e6 * (fact["busy_ms"][0] - fact["busy_ms"][1])
    made_of = of_target(found, Fused(time_ns=12_000 - busy / sites, source="candidate"))
    measured = 1e6 * (fact["span_ms"][0] - fact["span_ms"][1])
    ours, plain = abs(made_of.saving_ns / measured - 1), abs(busy / measured - 1)
    assert ours < 0.07 and plain > 0.19 and ours < plain / 2


def row(tokens: str, before: float, after: float, half: float) -> BatchRow:
    """A size from two published numbers, each good to `half`."""
    saving = before - after
    verdict = judge(saving, (saving - 2 * half, saving + 2 * half), before, half / 10, kind="measured")
    state = {WORTH_MERGING: WINS, "below_margin": WINS, SLOWER: LOSES}.get(verdict.class_, verdict.class_)
    return BatchRow(int(tokens), 0, int(tokens), state, before, saving)


@pytest.mark.parametrize(
    "fact,values,half,sentence",
    [
        ("flashinfer_2269", "ms", 0.05, "Fuse up to 6 tokens; slower from 16; 7-15 not measured."),
        ("vllm_54787", "us", 0.005, "Fuse up to 16 tokens; slower from 32; 17-31 not measured."),
    ],
)
def test_a_crossover_becomes_a_gate(fact: str, values: str, half: float, sentence: str) -> None:
    rows = [row(tokens, *both, half) for tokens, both in PUBLIC[fact][values].items()]
    assert gate(rows).sentence == sentence


def test_vllm_22086_wins_at_32_tokens_alone() -> None:
    rows = [row(tokens, s, 1.0, 0.0025) for tokens, s in PUBLIC["vllm_22086"]["speedup"].items()]
    assert [r.state for r in rows] == [WINS, LOSES, LOSES]
    assert gate(rows).sentence == "Fuse up to 32 tokens; slower from 64; 33-63 not measured."
