"""The committed accuracy figures are those of the committed cases."""

from __future__ import annotations

import importlib
import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"


SETS = {"first": "h200_lab", "second": "h200_lab2", "third": "h200_lab3", "fourth": "h200_lab4"}


@pytest.fixture(params=SETS)
def summary(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """(file stem, summary made from the stored cases) of a set."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    made: str = importlib.import_module("lab_report").stored_summary(RESULTS, request.param)
    return SETS[request.param], made


def test_the_summary_is_made_from_the_cases(summary: tuple[str, str]) -> None:
    stem, made = summary
    assert made == (RESULTS / f"{stem}_summary.md").read_text(encoding="utf-8")


def test_the_page_on_accuracy_says_what_the_summary_says(summary: tuple[str, str]) -> None:
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    held_out = summary[1].split("## Held-out cases by kind")[0].split("## Tuning cases")[0]
    told = 0
    for line in (line for line in held_out.splitlines() if line.startswith("| ") and " of " in line):
        name, cases, mean, p95, held, width = (cell.strip(" *") for cell in line.split("|")[1:7])
        if not cases.isdigit():
            continue
        row = next(
            row
            for row in page.splitlines()
            if row.startswith(f"| {name} | {cases} |") and held.split(",")[0] in row and p95 in row
        )
        assert f"**{float(mean):.2f}**" in row and f"| {width} |" in row
        assert re.findall(r"\d+%", held)[0].removesuffix("%") in row
        told += 1
    assert told >= 4


def test_held_out_cases_were_used_for_nothing_else() -> None:
    rows = [json.loads(line) for line in (RESULTS / "h200_lab.jsonl").read_text(encoding="utf-8").splitlines()]
    sets = {kind: {row["case"] for row in rows if row["held_out"] is kind} for kind in (True, False)}
    assert len(sets[True]) == 70 and len(sets[False]) == 29 and not sets[True] & sets[False]
    batches = {kind: {row["facts"]["batch"] for row in rows if row["held_out"] is kind} for kind in (True, False)}
    assert not batches[True] & batches[False]


def test_the_refit_is_made_from_the_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    refit = importlib.import_module("lab_refit")
    stored = json.loads((RESULTS / "h200_lab_refit.json").read_text(encoding="utf-8"))
    rows = [row for row in importlib.import_module("lab").lines(RESULTS / "h200_lab.jsonl") if "case" in row]
    assert refit.captures(rows) == stored["captures"] and refit.in_place(rows) == stored["in_place"]
    assert refit.neighbours(rows, refit.GROUPS["batch"]) == stored["neighbours"]["batch"]
    # A page that says that no change was taken up must show why.
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    for group in ("boundary", "graph"):
        for name in ("as it is", "a part of the saving", "a constant a launch that goes"):
            assert f"{stored['point'][group][name]['mean_error']:.3f}" in page
    assert ", ".join(f"{abs(us):.1f}" for us in stored["whole_model"]["as it is"]) in page


def test_a_measured_saving_counts_captures_that_keep_their_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    saving = importlib.import_module("lab_report").saving
    # Captures 10 us apart, the same in both processes: 12 blocks in each say nothing of that.
    part = {"split": [[1_010_000 + k] * 12 for k in (0, 10_000, 20_000)], "fused": [[1_000_000] * 12] * 3}
    found = saving([part, part])
    assert found["ns"] == pytest.approx(20_000) and (found["captures"], found["processes"]) == (6, 2)
    # The mean of three with a standard deviation of 10 us, against fused ones that do not differ.
    assert found["interval_ns"][0] < 20_000 - 2 * 10_000 / 3**0.5


def test_what_the_page_says_of_tracing_and_captures_is_what_the_cases_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    parts = importlib.import_module("lab_parts")
    stored = json.loads((RESULTS / "h200_lab_parts.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    for name, stem in SETS.items():
        assert parts.parts(parts.held_out(stem), parts.LEAST.get(name, 0.0)) == stored[name]
        of = stored[name]["taken_along"]
        cells = " | ".join(f"{value:.3f}" for key, value in of.items() if key != "cases")
        assert f"| {of['cases']} | {cells} |" in page
    for name in ("second", "third", "fourth"):
        alone, whole = (stored[name]["classes"][by] for by in ("candidate", "candidate run"))
        now, then = alone["today"], whole["today"]
        row = (
            f"| {name} | {stored[name]['cases']} | {now['mean_error']:.2f}, {now['inside']} | "
            f"{then['mean_error']:.2f}, {then['p95']:.2f}, {then['inside']} | "
            f"{whole['one_capture']['mean_error']:.2f} |"
        )
        assert row in page


def test_what_was_changed_after_the_fourth_set_is_what_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    rows = importlib.import_module("lab").lines(RESULTS / "h200_lab4.jsonl")
    intervals = [row["again"]["candidate run"]["interval_ns"] for row in rows]
    held = [low <= row["measured"]["ns"] <= high for row, (low, high) in zip(rows, intervals, strict=True)]
    widths = [(high - low) / 2 / row["step_ns"] * 100 for row, (low, high) in zip(rows, intervals, strict=True)]
    plain = [importlib.import_module("lab_report").kind_of(row["facts"]) == "chain" for row in rows]
    chains = sum(h for h, chain in zip(held, plain, strict=True) if chain)
    page = " ".join((ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8").split())
    told = f"would have held {sum(held)} of {len(rows)}, {chains} of the {sum(plain)} chains, with a half-width of "
    assert f"{told}{statistics.median(widths):.3f}" in page


def test_the_page_names_each_kind_of_graph_of_the_newest_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    report, lines = importlib.import_module("lab_report"), importlib.import_module("lab").lines
    rows = lines(RESULTS / "h200_lab4.jsonl")
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_kind.setdefault(report.kind_of(row["facts"]), []).append(row)
    for mine in by_kind.values():
        errors = [
            sum(abs(report.error(row, row["by"][name]["ns"])) for row in mine) / len(mine)
            for name in ("candidate", "candidate run")
        ]
        inside = sum(report.held(row, "candidate run") for row in mine)
        assert f"| {len(mine)} | {errors[0]:.3f} | {errors[1]:.3f} | {inside} |" in page
