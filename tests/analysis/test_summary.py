"""The text of a pull request: its form, its sums, its limits, and names that are data."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import fused_mhc_post
import pandas as pd
import pytest
from literal_traces import AR, FUSED, FUSED_RUN, GEMM, SPLIT, kernels, timings
from summary_store import noisy

from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.compare import Comparison, compare
from fusionscope.analysis.copies import Copies, copies
from fusionscope.analysis.summary import LONGEST, Options, html, markdown
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run
from fusionscope.profiler.trace import Trace, table

Made = Callable[..., Analysed]


SLOW = noisy(30_000)


def rows(text: str) -> list[list[str]]:
    """The cells of the first table, without its head."""
    lines = text.split("\n\n")[1].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def microseconds(cell: str) -> float:
    """The sum that a cell shows: `2 x 3.00 us = 6.00 us, sum 6.10 us`, `2 launches, 6.00 us`, `9.78 ms`."""
    found = re.findall(r"([+-]?\d+(?:\.\d+)?) (us|ms)", cell.replace("*", "").partition("(")[0])
    return 0.0 if not found else float(found[-1][0]) * (1000 if found[-1][1] == "ms" else 1)


@pytest.fixture(scope="module")
def published() -> Comparison:
    before, after = fused_mhc_post.pair()
    return compare(analyse(before), analyse(after))


def test_the_published_cells_of_a_real_pull_request_come_out(published: Comparison) -> None:
    text = markdown(published)
    assert text.startswith("### `mhc_post:ffn_exit` fused at 45 sites: 0.15 ms less per decode forward (-1.56 % of the")
    assert "SGLang, GLM-5.3-Flash-Quark-MXFP4, MI355X TP4, batch 4, context 8192, HIP graph, 4 of 4 ranks" in text
    for row in (
        "| `cross_device_reduce_1stage`, in this boundary | 45 x 8.10 us = 364.5 us | 0 | -364.5 us |",
        "| `mhc_post_kernel`, in this boundary | 45 x 4.30 us = 193.5 us | 0 | -193.5 us |",
        "| `allreduce_mhc_post_large_m_kernel`, in this boundary | 0 | 45 x 8.62 us = 387.9 us | +387.9 us |",
        "| **boundary, 45 sites** | **90 launches, 558.0 us** | **45 launches, 387.9 us** "
        "| **-170.1 us (-3.78 us a site)** |",
        "| **launches** | **1664** | **1619** | **-45 (-2.70 %)** |",
        "| **kernel time** (sum of durations) | **9.78 ms** | **9.61 ms** | **-0.17 ms (-1.74 % of kernel time)** |",
    ):
        assert row in text
    assert "45 of 45 sites, 3 of 3 replays, 4 of 4 ranks.** " not in text
    assert "**Fired:** 45 of 45 sites, 3 of 3 replays, 4 of 4 ranks. **Only difference:** " in text
    assert "`SGLANG_ROCM_FUSED_AR_MHC_POST` unset -> 1." in text
    assert "Base image `rocm/sgl-dev:v0.5.20-rocm10-mi35x-20260928`, commit `ebdeba2fee`." in text


def test_several_ranks_show_the_slowest_the_median_and_the_wait_apart(published: Comparison) -> None:
    text = markdown(published)
    # 91 (then 46 + 45) meetings wait 400 ns a rank: 1200 ns on rank 3, whose span is longest.
    assert "| span, slowest rank (rank 3) | 9.8892 ms | 9.7192 ms | -0.17 ms (-1.72 % of span) |" in text
    assert "| span, median of 4 ranks | 9.8346 ms | 9.6646 ms |" in text
    assert "All-reduces, 4 ranks: before transfer 8.08 us and wait 0.60 us each" in text
    assert text.index("**Not measured:**") < text.index("<details>") < text.index("| after: rank |")


def test_ranks_that_ran_something_else_are_named_and_not_averaged() -> None:
    sides = []
    for run in fused_mhc_post.pair():
        whole = run.trace.kernels
        lost = (whole["rank"] == 2) & (whole["name"] == fused_mhc_post.TAIL)
        kernels_left = whole[~lost & (whole["rank"] != 1)].reset_index(drop=True)
        sides.append(analyse(Run(run.info, replace(run.trace, kernels=kernels_left), run.path)))
    text = markdown(compare(*sides)).partition("<details>")[0]
    assert "span, slowest rank (rank 3)" in text and "median of" not in text
    assert "**Ranks:** 3 of 4 ranks were traced: all-reduce time includes an unknown wait" in text
    assert "Ranks differ in launches (rank 0 1664, rank 2 1663, rank 3 1664), so they are not averaged." in text


def test_what_came_and_went_elsewhere_is_counted(made: Made) -> None:
    others = [(f"other_{k}", 50_000 + 100 * k, 50) for k in range(20)]
    text = markdown(compare(made([[*SPLIT, *others]] * 2), made([FUSED_RUN] * 2)))
    # Eight stand by name, twelve are left beside the GEMM that nothing touched.
    assert "| all other kernels | 14 launches, 20.60 us | 2 launches, 20.00 us " in text
    assert "(12 of 13 kernels came, went or grew) |" in text


@pytest.mark.parametrize("side", [1, 2, 3])
def test_the_columns_add_up_to_the_kernel_time_exactly(published: Comparison, made: Made, side: int) -> None:
    # Sums over replays whose medians do not add up: each kernel has its slow replay.
    uneven = [[(n, s, d + 7 * ((k + r) % 3)) for k, (n, s, d) in enumerate(SPLIT)] for r in range(5)]
    for found in (published, compare(made(uneven), made([FUSED_RUN] * 5))):
        cells = rows(markdown(found))
        parts = [row for row in cells if "boundary" in row[0] and "**" not in row[0]]
        parts += [row for row in cells if "elsewhere" in row[0] or "all other" in row[0]]
        total = next(row for row in cells if "kernel time" in row[0])
        assert sum(microseconds(row[side]) for row in parts) == pytest.approx(microseconds(total[side]), abs=1e-6)


def test_the_product_and_the_true_sum_both_stand(made: Made) -> None:
    uneven = [(GEMM, 0, 10_000), *SPLIT[1:3], (GEMM, 15_300, 14_000), *SPLIT[4:], (GEMM, 40_000, 10_000)]
    text = markdown(compare(made([uneven] * 2), made([[*uneven[:1], (GEMM, 50_000, 90)]] * 2)))
    assert f"`{GEMM}`" in text and "3 x 10.00 us = 30.00 us, sum 34.00 us" in text
    assert "True sums differ from launches x median by up to 11.8 %" in text


def test_copies_and_fills_are_no_launches_and_stand_apart(made: Made) -> None:
    def with_copies(launches: list[Any], n: int) -> Analysed:
        frame = kernels([launches] * 2).astype({"kind": str, "name": str, "raw_name": str})
        extra = [frame[frame["node"] == 0].assign(kind="memcpy", name="copy", duration_ns=500, node=50 + k)
                 for k in range(n)]  # fmt: skip
        whole = table("kernels", pd.concat([frame, *extra], ignore_index=True))
        return analyse(Run(RunInfo(), Trace(kernels=whole), Path()))

    base, candidate = with_copies(SPLIT, 3), with_copies(FUSED_RUN, 1)
    assert copies(base) == [Copies("memcpy", 3, 1_500.0)]
    text = markdown(compare(base, candidate))
    assert "| memcpy nodes (not launches, in no sum above) | 3, 1.50 us | 1, 0.50 us | -2, -1.00 us |" in text
    assert "| **launches** | **6** | **4** |" in text and "memset" not in text
    assert copies(made([SPLIT])) == []


NASTY = ["evil`|\n| kernel", "<script>alert(1)</script>", "@octocat", "fixes #123", "[x](http://evil)", "</details>"]


@pytest.mark.parametrize("nasty", NASTY)
def test_names_from_a_trace_cannot_break_the_text(made: Made, nasty: str) -> None:
    sides = (
        made([[*SPLIT, (nasty, 40_000, 9)]] * 2, model=nasty, machine={"gpu": nasty, nasty: nasty}),
        made([[*FUSED_RUN, (nasty, 40_000, 900)]] * 2, model=nasty, machine={"gpu": nasty}, environment={nasty: nasty}),
    )
    text = markdown(compare(*sides), options=Options(title=nasty))
    several = markdown([compare(*sides), compare(*sides)])
    text += several.partition("<details>")[0]
    outside = re.sub(r"(`+).*?(?<!`)\1(?!`)", "", text)
    for sign in ("<script>", "@octo", "#123", "](http"):
        assert sign not in outside
    assert outside.count("</details>") == 1
    table_lines = [line for line in outside.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in table_lines} <= {5, 6, 7}

    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.seen: set[str] = set()

        def handle_starttag(self, tag: str, attrs: object) -> None:
            self.seen.add(tag)

    tags = Tags()
    tags.feed(html([compare(*sides)], Options(title=nasty)))
    assert "table" in tags.seen and not tags.seen & {"script", "a", "img", "iframe", "link"}


def test_any_run_stays_under_githubs_limit(made: Made) -> None:
    many = [(f"void n{k}::{'x' * 60}<{'y' * 60}{k}>(int)", 100 * k, 50) for k in range(5_000)]
    env = {f"VLLM_{k}_{'z' * 100}": "w" * 5_000 for k in range(300)}
    command = ["fusionscope", *(["--long"] * 5_000)]
    sides = [
        made([[*many, *((n, s + 600_000, d) for n, s, d in launches)]] * 2, environment=env, command=command)
        for launches in (SPLIT, FUSED_RUN)
    ]
    text = markdown([compare(*sides)] * 3)
    assert len(text) < LONGEST and text.rstrip().endswith("</details>")
    assert "more kernels: `fusionscope compare --json` has them" in text
    assert len(text) > LONGEST / 2


def test_another_batch_is_not_comparable_and_no_time_is_put_beside_another(made: Made) -> None:
    base = made([SPLIT] * 3, timings(SLOW), batch=4)
    candidate = made([FUSED_RUN] * 3, timings([[27_900, 27_904, 27_896, 27_900]] * 6), batch=16)
    text = markdown(compare(base, candidate))
    assert text.startswith("### Not comparable: `batch` 4 -> 16\n")
    assert "**Verdict:** none: the runs are not comparable." in text
    assert "%" not in text.partition("<details>")[0] and "saving" not in text


def test_no_difference_and_a_loss_are_said_in_the_title(made: Made) -> None:
    same, worse = (noisy(30_000), noisy(31_000))
    base = made([SPLIT] * 3, timings(SLOW, processes=3))
    assert "fused at 2 sites: no measurable difference, " in markdown(
        compare(base, made([FUSED_RUN] * 3, timings(same, processes=3)))
    )
    loss = markdown(compare(base, made([FUSED_RUN] * 3, timings(worse, processes=3))))
    assert "1.00 us more per decode forward (+3.33 % of the replay), slower" in loss.splitlines()[0]
    assert "**Verdict: slower, above noise**" in loss


def test_a_prediction_is_said_to_be_one(made: Made) -> None:
    # A site of 2 us: what 4 us save is less than what the prediction may be off by.
    quick = [(name, start, min(duration, 2_000) if name == FUSED else duration) for name, start, duration in FUSED_RUN]
    text = markdown(compare(made([SPLIT] * 3, timings(SLOW)), made([quick] * 3)))
    assert "predicted, measurable" in text.splitlines()[0]
    assert "**Predicted, not measured:** saving" in text and "**Verdict, predicted: " in text
    traced = markdown(compare(made([SPLIT] * 3), made([FUSED_RUN] * 3)))
    assert "of the traced span), traced only, undecided" in traced.splitlines()[0]


def test_a_regression_names_what_grew(made: Made) -> None:
    text = markdown(compare(made([FUSED_RUN] * 3), made([SPLIT] * 3)))
    assert text.startswith("### No known boundary became fewer launches: 2.20 us more per decode forward")
    assert "**Fired:** no. `ar_norm` takes 4 launches instead of 2." in text


def test_doubts_are_said(made: Made) -> None:
    sides = made([SPLIT] * 2, profiler="nsys"), made([FUSED_RUN] * 2, profiler="cupti")
    assert "**Doubtful:** the times were not taken alike: `profiler` nsys -> cupti." in markdown(compare(*sides))


@pytest.mark.parametrize(
    ("info", "said"),
    [
        ({"device": "cpu", "machine": {"cpu": "AMD EPYC"}}, "AMD EPYC, one graph"),
        ({"device": "cpu"}, "CPU, one graph"),
        ({"device": "cuda"}, "unknown GPU, one graph"),
        ({"machine": {"gpu": "NVIDIA H200"}, "tp": 4}, "NVIDIA H200 TP4, CUDA graph"),
    ],
)
def test_the_summary_names_the_machine_and_every_label(made: Made, info: dict[str, Any], said: str) -> None:
    labels = ["cpu"] if info.get("device") == "cpu" else []
    sides = made([SPLIT] * 2, labels=labels, **info), made([FUSED_RUN] * 2, labels=[*labels, "incomplete"], **info)
    line = markdown(compare(*sides)).splitlines()[1]
    assert line.startswith(f"unknown model (imported), {said}, 1 of 1 ranks traced. Labels: ")
    assert ", ".join([*labels, "incomplete"]) + "." in line
    assert ("Times are a CPU's and say nothing of a GPU" in line) == bool(labels)


def test_several_batches_are_one_table_and_a_fold_each(made: Made) -> None:
    pairs = [compare(made([SPLIT] * 2, timings(SLOW), batch=b), made([FUSED_RUN] * 2, timings(SLOW), batch=b))
             for b in (1, 4, 16)]  # fmt: skip
    text = markdown(pairs)
    assert [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| batch")] == [
        "batch 1", "batch 4", "batch 16",
    ]  # fmt: skip
    assert text.count("<details>") == 3 and "anything but batch 1, 4, 16;" in text
    assert html(pairs, Options()).count("<details>") == 3


def test_several_candidates_are_told_apart_by_name(made: Made) -> None:
    base = made([SPLIT] * 2)
    pairs = [compare(base, made([FUSED_RUN] * 2, name=name)) for name in ("triton", "a|b")]
    lines = [line for line in markdown(pairs).splitlines() if line.startswith(("| triton", "| `a\\|b`"))]
    assert len(lines) == 2


def test_a_title_comes_before_the_claim(made: Made) -> None:
    text = markdown(compare(made([SPLIT] * 2), made([FUSED_RUN] * 2)), options=Options(title="Fuse the exit"))
    assert text.splitlines()[0] == "### Fuse the exit"
    assert text.splitlines()[1].startswith("**`ar_norm` fused at 2 sites: ")
    assert AR in text
