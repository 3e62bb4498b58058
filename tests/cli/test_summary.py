"""`fusionscope summary`: its text word for word, its formats, pairs and gates.

FUSIONSCOPE_UPDATE_SNAPSHOTS=1 rewrites the files in tests/cli/snapshots.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import summary_store

from fusionscope.cli.variadic import spread

FOLDER = Path(__file__).parent / "snapshots"
CASES = {
    "summary_h200.md": "example example-fused",
    "summary_regression.md": "split worse",
    "summary_no_difference.md": "split equal",
    "summary_incomparable.md": "split fused16",
    "summary_cpu.md": "cpu-split cpu-fused",
    "summary_once.md": "once-split once-fused",
    "summary_batches.md": "--base split split16 --candidate fused fused16 --title Fused",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs") / "store"
    summary_store.fill(folder)
    return folder


@pytest.fixture
def summary(fusionscope: Any, store: Path) -> Any:
    return lambda *args: fusionscope("summary", *args, "--store", store)


@pytest.mark.parametrize("file", CASES)
def test_the_text_is_as_stored(summary: Any, file: str) -> None:
    answer = summary(*CASES[file].split())
    assert (answer.code, answer.err) == (0, "")
    text = re.sub(r"\d{8}-\d{6}-[0-9a-f]{6}", "RUN-ID", answer.out)
    # How wide a prediction is, is the estimate's to say and its tests' to hold.
    text = re.sub(r"(saving \S+ us) \[\S+ \S+\](; Amdahl)", r"\1 [LOW, HIGH]\2", text)
    text = re.sub(r"(predicted beforehand: \S+ us) \[[^]]+\]", r"\1 [LOW, HIGH]", text)
    if os.environ.get("FUSIONSCOPE_UPDATE_SNAPSHOTS") == "1":
        (FOLDER / file).write_text(text, encoding="utf-8")
    assert text == (FOLDER / file).read_text(encoding="utf-8")


def test_the_formats_say_the_same(summary: Any) -> None:
    text, page = summary("split", "fused").out, summary("split", "fused", "--format", "html").out
    assert page.startswith("<!doctype html>") and page.count("<table>") == text.count("\n|---") == 2
    document = summary("split", "fused", "--format", "json").json
    assert document == summary("split", "fused", "--json").json
    assert document["markdown"] == text and document["title"] in text.replace("`", "")
    assert document["verdict"]["class"] == "worth_merging" and document["gates"]["exit_code"] == 0
    answer = summary("split", "fused", "--format", "pdf")
    assert answer.code == 2 and "choose md, html, json" in answer.err


def test_the_margin_is_said_and_decides(summary: Any) -> None:
    assert "margin 0.5 % = 0.15 us" in summary("split", "fused").out
    wide = summary("split", "fused", "--margin", "10%", "--json").json
    assert wide["verdict"]["class"] == "below_margin" and "margin 10 % = 2.95 us" in wide["markdown"]


def test_several_candidates_share_a_base(summary: Any) -> None:
    document = summary("split", "fused", "worse", "equal", "--json").json
    classes = [pair["verdict"]["class"] for pair in document["pairs"]]
    assert classes == ["worth_merging", "slower", "not_measurable"]
    assert [pair["name"] for pair in document["pairs"]] == ["fused", "worse", "equal"]


@pytest.mark.parametrize("args", [["split"], [], ["split", "fused", "--base", "split"], ["--base", "split", "split16"]])
def test_runs_that_make_no_pairs_are_wrong_use(summary: Any, args: list[str]) -> None:
    assert summary(*args).code == 2


GATES = ("slower", "below-margin", "not-measurable", "inconclusive", "incomparable", "not-fired", "launches-grew")


@pytest.mark.parametrize(
    ("args", "holds"),
    [
        (["split", "fused"], {}),
        (["split", "worse"], {"slower": 1}),
        (["once-split", "once-fused"], {"inconclusive": 1}),
        (["once-fused", "once-split"], {"not-fired": 1, "launches-grew": 1, "inconclusive": 1}),
        (["split", "equal"], {"not-measurable": 1}),
        (["split", "fused16"], {"incomparable": 2}),
        (["fused", "split"], {"not-fired": 1, "launches-grew": 1, "slower": 1}),
        (["split", "split"], {"not-fired": 1, "not-measurable": 1}),
        (["split", "fused", "--margin", "10%"], {"below-margin": 1}),
        (["split", "fused", "worse"], {"slower": 1}),
    ],
)
def test_a_gate_fails_where_it_holds_and_nowhere_else(summary: Any, args: list[str], holds: dict[str, int]) -> None:
    assert summary(*args).code == 0
    for gate in GATES:
        answer = summary(*args, "--fail-if", gate)
        assert answer.code == holds.get(gate, 0), gate
        assert (f"Gate {gate} failed for " in answer.err) == (gate in holds)
        assert answer.out.startswith("### ")
    document = summary(*args, "--fail-if", ",".join(GATES), "--json").json
    assert set(document["gates"]["failed"]) == set(holds)
    assert document["gates"]["exit_code"] == max(holds.values(), default=0)


def test_several_captures_of_each_arm_are_one_measurement(summary: Any) -> None:
    arms = [[f"once-{arm}{again}" for again in ("", "-2", "-3")] for arm in ("split", "fused")]
    document = summary("--base", *arms[0], "--candidate", *arms[1], "--json").json
    assert len(document["pairs"]) == 1 and document["measured"]["captures"] == {"base": 3, "candidate": 3}
    verdict = document["measured"]["verdict"]
    assert (verdict["kind"], verdict["class"], verdict["would_be"]) == ("measured", "worth_merging", None)
    assert "saving 2.00 us" in document["markdown"] and "3 captures an arm." in document["markdown"]


def test_undecided_is_a_warning_unless_it_is_a_gate(fusionscope: Any, literal_store: Path) -> None:
    args = ("summary", "traced", "fused", "--store", literal_store, "--fail-if")
    warned = fusionscope(*args, "slower")
    assert warned.code == 0 and warned.err.startswith("Warning for traced -> fused: ")
    assert fusionscope(*args, "slower,inconclusive").code == 1


def test_an_unknown_gate_is_wrong_use(summary: Any) -> None:
    answer = summary("split", "fused", "--fail-if", "slow")
    assert answer.code == 2 and "choose among slower, below-margin" in answer.err


def test_an_option_takes_several_words_up_to_the_next() -> None:
    several = ("--base", "--candidate")
    assert spread(["--base", "a", "b", "--candidate", "c", "--json", "x"], several) == [
        "--base", "a", "--base", "b", "--candidate", "c", "--json", "x",
    ]  # fmt: skip
    assert spread(["a", "b", "--margin", "1%"], several) == ["a", "b", "--margin", "1%"]
    assert spread(["--base", "a", "--", "b"], several) == ["--base", "a", "--", "b"]


def served(folder: Path, name: str, **values: object) -> str:
    known = {"max_concurrency": 4, "median_tpot_ms": 0.1, "median_ttft_ms": 300.0, "output_throughput": 100.0}
    (folder / name).write_text(json.dumps(known | values), encoding="utf-8")
    return str(folder / name)


def test_serving_and_accuracy_stand_before_the_fold(summary: Any, tmp_path: Path) -> None:
    before = [served(tmp_path, "b.json"), served(tmp_path, "b64.json", max_concurrency=64, median_tpot_ms=40.0)]
    after = [served(tmp_path, "a.json", median_tpot_ms=0.098),
             served(tmp_path, "a64.json", max_concurrency=64, median_tpot_ms=40.1)]  # fmt: skip
    args = ("split", "fused", "--serving-base", *before, "--serving-candidate", *after, "--controls", "64",
            "--accuracy", "gsm8k=0.967/1319,0.969/1319")  # fmt: skip
    head = summary(*args).out.partition("<details>")[0]
    # 2 us of a token that takes 100 us.
    assert "**Serving:** Concurrency 4: time per token observed -2.0 % +- " in head and "predicted -2.0 %" in head
    assert "Concurrency 64 is a control (fusion off)" in head
    assert "**Accuracy:** gsm8k 0.967 -> 0.969 of 1319: no change seen; would miss a drop below 1.4 points." in head
    assert head.rstrip().endswith("**Not measured:** anything but batch 4, context 1024, TP4.")
    document = summary(*args, "--json").json
    assert len(document["serving"]["rows"]) == 2 and document["accuracy"][0]["changed"] is False
    assert summary("split", "fused", "--serving-base", *before).code == 2


def test_an_acceptance_length_that_fell_forbids_a_positive_verdict(summary: Any, tmp_path: Path) -> None:
    arms = [[served(tmp_path, f"{side}{k}.json", accept_length=length + k / 1000) for k in range(3)]
            for side, length in (("b", 3.0), ("a", 2.5))]  # fmt: skip
    args = ("split", "fused", "--serving-base", *arms[0], "--serving-candidate", *arms[1])
    answer = summary(*args, "--fail-if", "inconclusive")
    assert answer.code == 1 and "it fell beyond its noise" in answer.err
    assert answer.out.splitlines()[0].endswith(", undecided") and "**Verdict: undecided**" in answer.out
    assert "worth merging on time alone;" not in answer.out
    assert (
        "undecided, since the acceptance length fell beyond its noise (3 -> 2.5)"
        in summary(*args, "--json").json["quote"]
    )
    series = ("--base", "split16", "split", "--candidate", "fused", "fused16", "--margin", "0.01%", *args[2:])
    assert "**Gate:** fuse at none of the measured sizes (undecided)." in summary(*series).out
    assert summary("split", "fused", "--fail-if", "inconclusive").code == 0


def test_a_series_of_batches_says_up_to_where_to_fuse(summary: Any) -> None:
    text = summary("--base", "split16", "split", "--candidate", "fused", "fused16", "--margin", "0.01%").out
    assert "| batch 4 |" in text and "| batch 16 |" in text
    assert "**Gate:** fuse at every measured size (4 to 16 tokens); above 16 not measured." in text
    assert "**Gate:**" not in summary("split", "fused", "worse").out


def test_compare_says_that_runs_are_not_comparable(fusionscope: Any, store: Path) -> None:
    args = ("compare", "split", "fused16", "--store", store)
    assert "Not comparable, so no time is judged: batch 4 -> 16." in fusionscope(*args).out
    document = fusionscope(*args, "--json").json
    assert document["measured"] is None and document["incomparable"] == {"batch": {"base": "4", "candidate": "16"}}
    # The margin of the question is the quote's too.
    wide = ("compare", "split", "fused", "--store", store, "--margin", "10%", "--json")
    assert "below the margin" in fusionscope(*wide).json["quote"]


def test_measured_arms_are_given_one_a_pair(summary: Any) -> None:
    assert "--ab names 2 runs for 1 pairs" in summary("split", "fused", "--ab", "split", "fused").err
    assert "holds no two arms" in summary("split", "fused", "--ab", "split").err


def test_the_readme_quotes_what_the_command_writes(summary: Any) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    text = summary("example", "example-fused").out
    quoted = [line.removeprefix("> ") for line in readme.splitlines() if line.startswith(("> |", "> ###"))]
    assert len(quoted) >= 7 and [line for line in quoted if line not in text] == []
    # The lines of text are broken to the README's width, and what it leaves out is marked.
    flat = " ".join(text.split())
    lines = [line.removeprefix("> ") for line in readme.splitlines() if line.startswith("> ") and line[2] not in "|#"]
    for part in " ".join(lines).split(" [...] "):
        assert part in flat
