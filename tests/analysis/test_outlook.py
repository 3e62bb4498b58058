"""Before a kernel exists: break-even, floors and plain estimators, worked out by hand on literal traces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from literal_traces import GEMM, NORM, SPLIT, timings

from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.baselines import baselines
from fusionscope.analysis.estimate import NEIGHBOURS_NS, Fused, of_target
from fusionscope.analysis.floors import Shape, floors, shape_of
from fusionscope.analysis.outlook import Outlook, document, outlook
from fusionscope.analysis.target import TAKEN_ERROR_NS, TAKEN_NS, Target, target
from fusionscope.profiler.importing import import_files
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run

#: A site of 5,100 ns of which tracing has added what a launch takes along.
SITE = 5_100 - TAKEN_NS
STEP = timings([[30_500, 30_510, 30_490, 30_500]] * 5)
#: 4 rows of 4,096 bf16 over 1,000 bytes a nanosecond, and 100 over the links.
KNOWN = Shape(tokens=4, hidden=4096, tp=4, memory_bytes_per_ns=1_000.0, link_bytes_per_ns=100.0)


def of(run: Analysed, boundary: str = "ar_norm") -> Target:
    return target(run.attribution, run.schedule(), boundary, "", run.untraced, run.wait())


def ahead(run: Analysed, margin: float = 0.005, shape: Shape = KNOWN) -> Outlook:
    found = of(run)
    return outlook(found, floors(found, shape), margin)


def test_break_even_is_the_split_time_with_its_gap_and_the_goal_is_a_share_of_the_step_less(
    made: Callable[..., Analysed],
) -> None:
    found = ahead(made([SPLIT] * 4, STEP))
    assert found.break_even_ns == pytest.approx(SITE, abs=1)
    # 0.5 % of 30.5 us over two sites is 76 ns a site.
    assert found.goal_ns == pytest.approx(SITE - 152.5 / 2, abs=1)
    assert "Saves 0.5 % of the step only if the fused kernel takes at most 4.9 us a site" in found.sentence()
    assert "equals split at 5.0 us" in found.sentence()
    assert found.verdict().class_ == "inconclusive"


def test_ten_per_cent_is_not_written_as_one(made: Callable[..., Analysed]) -> None:
    assert "Saves 10 % of the step" in ahead(made([SPLIT] * 4, STEP), margin=0.1).sentence()


def test_a_goal_beyond_the_ceiling_is_said(made: Callable[..., Analysed]) -> None:
    found = ahead(made([SPLIT] * 4, STEP), margin=0.5)
    assert found.goal_ns is None and found.break_even_ns is not None
    assert f"at no time of a fused kernel: the ceiling is {2 * SITE / 1000:.2f} us" in found.sentence()
    assert found.verdict().class_ == "below_margin"


def test_a_goal_below_the_floor_is_said(made: Callable[..., Analysed]) -> None:
    # Saving 25 % takes a kernel of 1.2 us, and no launch here is shorter than 2 us.
    found = ahead(made([SPLIT] * 4, STEP), margin=0.25)
    assert found.goal_ns == pytest.approx(SITE - 7_625 / 2, abs=1) and "its floor is 2.0 us" in found.sentence()
    # What the neighbours of two sites may gain, 2 us, would reach it.
    assert found.verdict().class_ == "inconclusive"
    never = ahead(made([SPLIT] * 4, STEP), margin=0.3).verdict()
    assert never.class_ == "below_margin" and "No kernel can save the margin" in never.sentence
    assert "no kernel can save the margin" in never.quote and "real" not in never.quote
    # One sentence, whatever there is to say.
    assert "; no kernel does: its floor is 2.0 us." in never.quote and ". " not in never.quote


def test_noise_above_all_that_can_be_saved_is_not_measurable(made: Callable[..., Analysed]) -> None:
    noisy = timings([[20_000, 20_000, 45_000, 45_000], [45_000, 45_000, 20_000, 20_000]] * 2)
    assert ahead(made([SPLIT] * 4, noisy)).verdict().class_ == "not_measurable"


def test_floors_of_a_site(made: Callable[..., Analysed]) -> None:
    found = floors(of(made([SPLIT])), KNOWN)
    row = 4 * 4096 * 2
    assert found.launch_ns == 2_000 and found.bytes_ns == 4 * row / 1_000
    assert found.reduce_ns == 2 * 3 / 4 * row / 100
    assert found.floor_ns == 2_000 and found.unknown == ()
    assert (found.memory_gbps, found.memory_from) == (1_000, "given")
    slow = floors(of(made([SPLIT])), Shape(site_bytes=5_000_000, memory_bytes_per_ns=1_000.0))
    assert slow.floor_ns == 5_000 and slow.reduce_ns is None and "all-reduce" in slow.unknown[0]


def test_what_is_not_known_of_a_floor_is_named(made: Callable[..., Analysed]) -> None:
    found = floors(of(made([SPLIT])), Shape())
    assert found.bytes_ns is None and found.reduce_ns is None and found.floor_ns == found.launch_ns
    assert (found.memory_gbps, found.memory_from) == (None, "")
    assert "--site-bytes" in found.unknown[0] and "--tp" in found.unknown[1]
    rates = floors(of(made([SPLIT])), Shape(tokens=4, hidden=4096, tp=2))
    assert [u.partition(" (")[0] for u in rates.unknown] == ["memory bandwidth", "all-reduce"]
    no_reduce = floors(of(made([[(GEMM, 0, 100), (NORM, 110, 50)]]), "add_norm"), KNOWN)
    assert no_reduce.reduce_ns == 0


def test_the_shape_of_a_known_model_on_a_known_gpu() -> None:
    info = RunInfo(model="zai-org/GLM-5.3-Flash", tp=4, batch=4, machine={"gpu": "NVIDIA H200"})
    found = shape_of(info)
    assert (found.tokens, found.hidden, found.streams, found.top_k, found.tp) == (4, 4096, 4, 8, 4)
    assert (found.memory_bytes_per_ns, found.link_bytes_per_ns) == (4800, 450)
    assert shape_of(info, tokens=64, hidden=7168, memory_bytes_per_ns=4100.0).memory_bytes_per_ns == 4100
    assert [found.memory_from, shape_of(info, memory_bytes_per_ns=4100.0).memory_from] == ["published", "given"]
    there = msgspec.structs.replace(info, machine={"gpu": "NVIDIA H200", "memory_gbps": "4210"})
    beside = shape_of(there)
    assert (beside.memory_bytes_per_ns, beside.memory_from) == (4210, "measured")
    for wrong in ("nan", "-1", "0", "fast", ""):
        there.machine["memory_gbps"] = wrong
        assert (shape_of(there).memory_bytes_per_ns, shape_of(there).memory_from) == (4800, "published")
    unknown = shape_of(RunInfo(model="mine", machine={"gpu": "GPU"}))
    assert (unknown.hidden, unknown.tokens, unknown.memory_bytes_per_ns) == (0, 0, None)
    assert shape_of(RunInfo(model="glm-5.3-flash", labels=["scaled shapes"])).hidden == 0


def test_plain_estimators_by_hand(made: Callable[..., Analysed]) -> None:
    found = baselines(of(made([SPLIT] * 4, STEP)), 2.0, 2_000.0, 4_000.0, 3_000.0)
    assert found.amdahl_kernel_time_ns == pytest.approx(30_500 * 10_000 / 30_000 / 2)
    assert found.amdahl_span_ns == pytest.approx(10_000 / 2)
    assert found.share_discount_ns == pytest.approx(10_000 / 2)
    assert found.isolated_difference_ns == 2 * 1_000
    assert found.roofline_ns == 10_000 - 2 * 2_000
    less = baselines(of(made([SPLIT] * 4, STEP)), None, 2_000.0)
    assert less.amdahl_span_ns is None and less.isolated_difference_ns is None


def test_an_isolated_time_is_corrected_by_what_the_split_kernels_show(made: Callable[..., Analysed]) -> None:
    # In place a site takes twice what it takes alone: what takes 2,000 ns alone takes 4,000 in place.
    run = made([SPLIT] * 4, STEP)
    alone = (SITE - TAKEN_NS) / 2
    found = of_target(of(run), Fused(time_ns=2_000, source="isolated", split_ns=alone))
    assert found.saving_ns == pytest.approx(2 * (SITE - 4_000))
    plain = of_target(of(run), Fused(time_ns=2_000, source="isolated"))
    assert plain.saving_ns == pytest.approx(2 * (SITE - 2_000))
    low, high = found.interval_ns
    # 1.30 and 0.85 times 4,000 ns at two sites, what two sites do to their neighbours, and what tracing may take.
    rest = np.hypot(NEIGHBOURS_NS * np.sqrt(2), 2 * TAKEN_ERROR_NS)
    assert (found.saving_ns - low, high - found.saving_ns) == pytest.approx(
        (np.hypot(2_400, rest), np.hypot(1_200, rest))
    )


@pytest.mark.parametrize("times", [0.5, 1.3])
def test_a_bench_of_other_split_kernels_is_stretched_and_said(made: Callable[..., Analysed], times: float) -> None:
    goal = of(made([SPLIT] * 4, STEP))
    of_bench = (SITE - TAKEN_NS) / times
    like = Fused(time_ns=2_000, source="in-context", split_ns=of_bench).compared_with(goal)
    assert like.trust() == "isolated-corrected"
    found = of_target(goal, like)
    # Where the run's split kernels are the faster ones, the fused one is not taken to be faster as well.
    assert found.saving_ns == pytest.approx(2 * (SITE - 2_000 * max(times, 1)))
    assert "not of one version and GPU" in found.verdict.sentence
    same = Fused(time_ns=2_000, source="in-context", split_ns=SITE - TAKEN_NS).compared_with(goal)
    assert same.trust() == "in-context" and "one version" not in of_target(goal, same).verdict.sentence


def test_the_document_of_a_measured_split_run(samples: Path) -> None:
    trace = import_files(
        [samples / "h200_ar_norm/split.nsys.sqlite"],
        samples / "h200_ar_norm/split.nodes.json",
        f"{samples}/h200_ar_norm/untraced_abba.json:split",
    )
    run = analyse(Run(RunInfo(imported=True), trace, Path()))
    found = of(run)
    told = document(outlook(found, floors(found, shape_of(run.info))), baselines(found, None, 1.0))
    # The fused kernel took 4.03 us in place and saved 30 us of 952: it beats the target of 0.5 %.
    assert 4.03 < told["target_us"] < told["break_even_us"] < 6  # type: ignore[operator]
    # Disabling the nodes saved 140 us raw, 169 corrected for the cost of a disabled node.
    assert 140_000 <= told["ceiling_ns"] <= 300_000  # type: ignore[operator]
    assert np.isclose(found.saving_at(1000 * float(str(told["break_even_us"]))), 0, atol=50)
