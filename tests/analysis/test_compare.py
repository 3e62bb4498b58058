from __future__ import annotations

from collections.abc import Callable

import pytest
from literal_traces import AR, FUSED_RUN, GEMM, NORM, SPLIT, timings

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.changes import Fired
from fusionscope.analysis.compare import compare
from fusionscope.analysis.compare_document import document
from fusionscope.analysis.summary import markdown


def test_fired_sites_and_rows_that_add_up(made: Callable[..., Analysed]) -> None:
    found = document(compare(made([SPLIT] * 3), made([FUSED_RUN] * 3)))
    assert found["launches"] == {"base": 6, "candidate": 4}
    assert found["fired"] == {
        "sites": 2, "of_sites": 2, "replays": 3, "of_replays": 3, "ranks": 1, "of_ranks": 1, "boundary": "ar_norm",
    }  # fmt: skip
    kernels: list[dict[str, dict[str, int]]] = found["kernels"]  # type: ignore[assignment]
    for side in ("base", "candidate"):
        assert sum(k[side]["sum_ns"] for k in kernels) == found["kernel_time_ns"][side]  # type: ignore[index]
    assert {k["name"]: k["status"] for k in kernels} == {  # type: ignore[index]
        AR: "removed", NORM: "removed", "all_reduce_pull_norm_kernel": "added", GEMM: "untouched",
    }  # type: ignore[comparison-overlap]  # fmt: skip


def test_the_same_kernels_did_not_fire(made: Callable[..., Analysed]) -> None:
    found = compare(made([SPLIT] * 3), made([SPLIT] * 3))
    assert found.fired is None and found.same_sequence
    assert markdown(found).startswith("### The fusion did not fire")


def test_a_partial_fusion_counts_its_sites(made: Callable[..., Analysed]) -> None:
    half = [*FUSED_RUN[:2], *((name, start - 1_100, length) for name, start, length in SPLIT[3:])]
    found = compare(made([SPLIT] * 2), made([half] * 2))
    assert found.fired is not None and (found.fired.sites, found.fired.of_sites) == (1, 2)


def test_an_unknown_kernel_is_a_candidate_and_nothing_is_subtracted(made: Callable[..., Analysed]) -> None:
    unknown = [("their_new_kernel" if "pull" in name else name, start, length) for name, start, length in FUSED_RUN]
    found = compare(made([SPLIT] * 2), made([unknown] * 2))
    assert found.fired is None and found.suspects == [("their_new_kernel", 2, "ar_norm")]
    assert "their_new_kernel" in markdown(found) and "nothing was subtracted" in markdown(found)


@pytest.mark.parametrize(("name", "named"), [("my_fused_rms_norm_quant", True), ("nvjet_sm90_other_gemm", False)])
def test_a_new_kernel_with_a_role_is_a_candidate_unless_it_does_the_work(
    made: Callable[..., Analysed], name: str, named: bool
) -> None:
    after = [(name if "pull" in kernel else kernel, start, length) for kernel, start, length in FUSED_RUN]
    found = compare(made([SPLIT] * 2), made([after] * 2))
    assert found.fired is None and found.suspects == ([(name, 2, "ar_norm")] if named else [])


def test_a_shared_kernel_is_two_populations(made: Callable[..., Analysed]) -> None:
    more = [(AR, 0, 7_000), (GEMM, 7_100, 500), *((n, s + 8_000, d) for n, s, d in SPLIT)]
    after = [(AR, 0, 7_000), (GEMM, 7_100, 500), *((n, s + 8_000, d) for n, s, d in FUSED_RUN)]
    rows = {(r.name, r.where): r for r in compare(made([more] * 2), made([after] * 2)).rows}
    assert rows[(AR, "ar_norm")].base.launches == 2 and rows[(AR, "ar_norm")].status == "removed"
    assert rows[(AR, "")].base.launches == 1 and rows[(AR, "")].status == "untouched"


def test_untraced_times_of_both_give_a_measured_verdict(made: Callable[..., Analysed]) -> None:
    base = made([SPLIT] * 3, timings([[30_000, 30_004, 29_996, 30_000]] * 6, processes=3))
    candidate = made([FUSED_RUN] * 3, timings([[27_900, 27_904, 27_896, 27_900]] * 6, processes=3))
    found = compare(base, candidate)
    assert found.measured is not None and found.measured.kind == "measured"
    assert found.measured.class_ == "worth_merging" and found.measured_saving_ns == pytest.approx(2_100)
    assert found.captures == (3, 3) and document(found)["measured"]["between_captures_ns"] is None  # type: ignore[index]


@pytest.mark.parametrize(
    ("after", "class_", "leans"),
    [(27_900, "inconclusive", "worth_merging"), (31_000, "inconclusive", "slower"), (30_000, "inconclusive", "")],
)
def test_one_capture_of_each_arm_is_an_observation(
    made: Callable[..., Analysed], after: int, class_: str, leans: str
) -> None:
    base = made([SPLIT] * 3, timings([[30_000, 30_004, 29_996, 30_000]] * 6))
    candidate = made([FUSED_RUN] * 3, timings([[after, after + 4, after - 4, after]] * 6))
    found = compare(base, candidate)
    verdict, interval = found.measured, found.measured_interval_ns
    assert verdict is not None and interval is not None and found.captures == (1, 1)
    assert (verdict.kind, verdict.class_, verdict.would_be) == ("observed", class_, leans)
    # 1.022 % of 30 us is what two captures in two processes differ by.
    assert interval[0] == pytest.approx(30_000 - after - 306.6, abs=1) and found.between_ns == pytest.approx(306.6)
    assert "What would settle it" in verdict.sentence and "one capture of each arm" in verdict.sentence
    assert verdict.quote.startswith("Observed: ") and "worth merging" not in verdict.quote
    told: dict[str, object] = document(found)["measured"]  # type: ignore[assignment]
    assert told["captures"] == {"base": 1, "candidate": 1} and told["between_captures_ns"] == pytest.approx(306.6)
    title, _, line, decided = markdown(found).splitlines()[:4]
    assert "observed in one capture of each arm" in title and line.startswith("**Observed in one capture of each arm")
    assert decided.startswith("**Verdict: undecided**")


def test_one_capture_of_one_arm_is_an_observation_too(made: Callable[..., Analysed]) -> None:
    base = made([SPLIT] * 3, timings([[30_000, 30_004, 29_996, 30_000]] * 6, processes=3))
    found = compare(base, made([FUSED_RUN] * 3, timings([[27_900, 27_904, 27_896, 27_900]] * 6)))
    assert found.captures == (3, 1) and found.measured is not None and found.measured.kind == "observed"
    title, _, line, _ = markdown(found).splitlines()[:4]
    assert "one capture of each arm" not in found.measured.sentence + title + line
    assert title.endswith("observed in one capture of an arm") and "Observed in one capture of an arm" in line


def test_further_captures_of_the_same_programs_are_a_measurement(made: Callable[..., Analysed]) -> None:
    base, again, slow = (made([SPLIT] * 3, timings([[ns, ns + 4] * 2] * 6)) for ns in (30_000, 30_100, 30_050))
    candidate, fused, quick = (
        made([FUSED_RUN] * 3, timings([[ns, ns + 4] * 2] * 6)) for ns in (27_900, 28_000, 27_980)
    )
    found = compare(base, candidate, again=([again, slow], [fused, quick]))
    assert found.captures == (3, 3) and found.measured is not None and found.measured.kind == "measured"
    assert found.measured.class_ == "worth_merging" and found.measured_saving_ns == pytest.approx(2_090)
    untimed = compare(base, candidate, again=([again], [made([FUSED_RUN] * 3)]))
    assert untimed.measured is None


def test_what_differs_is_said(made: Callable[..., Analysed]) -> None:
    base = made([SPLIT] * 2, model="m", environment={"SGLANG_X": "0"})
    candidate = made([FUSED_RUN] * 2, model="m", environment={"SGLANG_X": "1"})
    assert compare(base, candidate).differs == {"SGLANG_X": ("0", "1")}
    assert "**Only difference:** `SGLANG_X` 0 -> 1." in markdown(compare(base, candidate))
    imported = made([FUSED_RUN] * 2, imported=True)
    assert "unknown (imported)" in markdown(compare(made([SPLIT] * 2, imported=True), imported))


def test_a_side_without_subtypes_is_compared_as_a_whole(made: Callable[..., Analysed]) -> None:
    from pathlib import Path

    import pandas as pd
    from literal_traces import kernels

    from fusionscope.analysis.analysed import analyse
    from fusionscope.profiler.runinfo import RunInfo
    from fusionscope.profiler.store import Run
    from fusionscope.profiler.trace import Trace, table

    # The second site is a copy of the norm's inputs that no rule knows, so only provenance sees it.
    odd = [*SPLIT, ("their_reduce", 40_000, 100), ("their_norm", 40_200, 100)]
    marks = pd.DataFrame({"rank": 0, "boundary": "ar_norm", "site": [0, 0, 1, 1], "node": [1, 2, 6, 7]})
    base = analyse(Run(RunInfo(), Trace(kernels=kernels([odd] * 2), sites=table("sites", marks)), Path()))
    assert [s.subtype for s in base.attribution.sites["ar_norm"]] == ["residual", ""]
    found = compare(base, made([FUSED_RUN] * 2))
    assert found.fired is not None and (found.fired.sites, found.fired.of_sites) == (2, 2)


def test_two_fusions_at_once_are_two_claims_and_have_no_prediction(made: Callable[..., Analysed]) -> None:
    def at(launches: list[tuple[str, int, int]], start: int) -> list[tuple[str, int, int]]:
        return [(name, start + begin, length) for name, begin, length in launches]

    write = "mhc_post_kernel"
    attention = [("mla_decode_kernel", 0, 50), (AR, 60, 20), (write, 90, 20)]
    moe = [("fused_moe_kernel", 0, 50), ("_moe_sum_reduce_kernel", 60, 9), (AR, 70, 20), (write, 95, 20)]
    fused_attention = [("mla_decode_kernel", 0, 50), ("ar_hc_post_oneshot_kernel", 60, 25)]
    fused_moe = [("fused_moe_kernel", 0, 50), ("moe_finalize_ar_hc_post_oneshot_kernel", 60, 28)]
    base = made([[*attention, *at(moe, 200)]] * 2)
    found = compare(base, made([[*fused_attention, *at(fused_moe, 200)]] * 2))
    assert [(change.name, sites) for change, sites in found.claims] == [("moe_finalize", 1), ("mhc_post", 1)]
    assert {r.where for r in found.rows} == {"", "moe_finalize", "mhc_post"}
    text = markdown(found)
    assert text.startswith("### `moe_finalize` fused at 1 sites and `mhc_post` at 1 more:")
    assert "Predicted: nothing, since several boundaries changed at once" in text
    only = compare(base, made([[*fused_attention, *at(moe, 200)]] * 2))
    assert [(change.name, sites) for change, sites in only.claims] == [("mhc_post:attn_exit", 1)]


def test_an_eager_forward_fires_in_no_replays() -> None:
    assert Fired("a", 72, 72, 0, 0, 8, 8).told() == "72 of 72 sites, 8 of 8 ranks"
    assert Fired("a", 90, 90, 12, 12, 1, 1).told() == "90 of 90 sites, 12 of 12 replays, 1 of 1 ranks"
