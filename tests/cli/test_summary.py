"""`fusionscope summary`: its text word for word, its formats, pairs and gates.

FUSIONSCOPE_UPDATE_SNAPSHOTS=1 rewrites the files in tests/cli/snapshots.
"""

from __future__ import annotations

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
