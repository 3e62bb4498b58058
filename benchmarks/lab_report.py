"""Joins what the lab's processes wrote: one line a case, and the tables of docs/accuracy.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from lab import lines
from lab_predict import WHOLE, Seen, predictions
from scipy import stats

from fusionscope.analysis.shifts import shift

CLASSES = ("candidate", WHOLE, "in-context", "isolated-corrected", "isolated")
PLAIN = {
    "amdahl_kernel_time": "Amdahl on kernel time",
    "amdahl_span": "Amdahl on span",
    "share_discount": "half of the share",
    "isolated_difference": "sites times the difference of the two times",
    "roofline": "roofline",
    "traced_difference": "difference of the traced spans",
}
#: Of each set: the stem of its files of cases and summary, and what heads the summary.
SETS = {
    "first": ("h200_lab", "The lab set on one"),
    "second": ("h200_lab2", "The lab's second set, each case on one"),
    "third": ("h200_lab3", "The lab's third set, each case on one"),
    "fourth": ("h200_lab4", "The lab's fourth set, each case on one"),
}
LARGE = 0.01
#: What the traces know of a case besides times: launches of the split step and of the candidate.
COUNTS = ("launches", "fused_launches")


def write(folders: list[Path], results: Path, which: str = "fourth", anew: bool = False) -> int:
    """Cases and summary of a set from the folders that `run` filled."""
    cases = [row for folder in folders for row in joined(folder, anew)]
    cases.sort(key=lambda row: (row["held_out"], row["case"]))
    failed = [row for folder in folders for row in failures(folder)]
    if cases:
        with (results / f"{SETS[which][0]}.jsonl").open("w", encoding="utf-8") as file:
            for row in [*cases, *failed]:
                file.write(json.dumps(row) + "\n")
    for name, (stem, _) in SETS.items():
        if (results / f"{stem}.jsonl").is_file():
            (results / f"{stem}_summary.md").write_text(stored_summary(results, name), encoding="utf-8")
    print(f"{len(cases)} cases, {len(failed)} failed")
    return 0


def stored_summary(results: Path, which: str = "first") -> str:
    """The Markdown of a set's results that are stored there."""
    stem, title = SETS[which]
    rows = lines(results / f"{stem}.jsonl")
    cases = [row for row in rows if "case" in row]
    return summary(cases, [row for row in rows if "failed" in row], f"{title} {gpu_of(cases)}", f"{stem}.jsonl")


def gpu_of(cases: list[dict[str, Any]]) -> str:
    """The GPU that the cases were measured on."""
    return str(cases[0]["gpu"]) if cases else "?"


def failures(folder: Path) -> list[dict[str, Any]]:
    """Groups that raised an error, with the phase."""
    return [
        {"failed": row["failed"], "group": row["group"], "phase": path.stem}
        for path in sorted(folder.glob("[tm]*[0-9].jsonl"))
        for row in lines(path)
        if "failed" in row
    ]


def joined(folder: Path, anew: bool = False) -> list[dict[str, Any]]:
    """A row for each case that was predicted and measured, and what `again` adds where `anew`.

    A held-out case keeps the prediction that was written before it was measured. A tuning case is predicted again, with
    the factors that were chosen on it.
    """
    measured: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("measure[0-9].jsonl")):
        for row in lines(path):
            if "failed" not in row:
                measured.setdefault(row["case"], []).append(row)
    traced = {row["case"]: row for row in lines(folder / "trace0.jsonl") if "case" in row}
    found = []
    for row in lines(folder / "predicted.jsonl"):
        parts = measured.get(row["case"])
        if not parts:
            continue
        if not row["held_out"]:
            row |= predictions(Seen.load(folder / "traces" / f"{row['case']}.npz"))
        seconds = {"seconds": parts[0]["seconds"]} if "seconds" in parts[0] else {}
        measured_here = {"measured": saving(parts), "gpu": parts[0]["gpu"], "clocks": [p["clocks"] for p in parts]}
        counts = {key: traced[row["case"]][key] for key in COUNTS if key in traced.get(row["case"], {})}
        path = folder / "traces" / f"{row['case']}.npz"
        more = again(Seen.load(path), row["facts"]) if anew and path.is_file() else {}
        found.append(row | measured_here | seconds | counts | more)
    return found


def again(seen: Seen, facts: dict[str, Any]) -> dict[str, Any]:
    """What today's constants make of a case that was predicted with others, and of each traced capture alone."""
    if seen.fused_early is None:  # the second set did not record it: these kernels are launched as the case says
        seen.fused_early = bool(facts["pdl"])
    now = predictions(seen)["by"]
    kept = {name: {key: now[name][key] for key in ("ns", "interval_ns")} for name in CLASSES if name in now}
    return {"again": kept, "one_capture": one_capture(seen)}


def one_capture(seen: Seen) -> dict[str, list[float]]:
    """What each traced capture of both arms predicts alone, ns by input class."""
    found: dict[str, list[float]] = {name: [] for name in CLASSES[:2]}
    assert seen.fused_start is not None and seen.fused_duration is not None
    count = len(seen.spans)
    if any(len(times) % count for times in (seen.start, seen.fused_start)):
        return found
    nodes = np.array(seen.fused_nodes)
    arms = [np.split(a, count) for a in (seen.start, seen.duration, seen.fused_duration)]
    for k, (start, duration, fused) in enumerate(zip(*arms, strict=True)):
        each = [fused[:, (nodes >= first) & (nodes < last)].sum(axis=1) for first, last in seen.fused_sites]
        one = replace(
            seen, start=start, duration=duration, candidate=float(np.median(np.mean(each, axis=0))),
            in_context=None, isolated=None, spans=[seen.spans[k]], fused_spans=[seen.fused_spans[k]],
        )  # fmt: skip
        by = predictions(one)["by"]
        for name, values in found.items():
            values.append(round(by[name]["ns"], 1))
    return found


def saving(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The measured saving of a case: the mean over its captures, which are the unit where their effects last."""
    arms = [[np.array(part[arm], float) for arm in ("split", "fused")] for part in parts]
    captured = np.array([[np.median(times, axis=1) for times in part] for part in arms])
    made = shift([split.mean(axis=0) - fused.mean(axis=0) for split, fused in arms], captured)
    assert made is not None
    return {
        "ns": made.value_ns,
        "interval_ns": list(made.interval_ns),
        "captures": captured.shape[0] * captured.shape[2],
        "processes": len(parts),
        "blocks": made.blocks,
        "split_ns": [float(np.median(v)) for p in parts for v in p["split"]],
        "fused_ns": [float(np.median(v)) for p in parts for v in p["fused"]],
    }


def error(row: dict[str, Any], ns: float) -> float:
    """Predicted minus measured in percentage points of the step."""
    return float((ns - row["measured"]["ns"]) / row["step_ns"] * 100)


def held(row: dict[str, Any], name: str) -> bool:
    """Whether the interval of an input class holds the measured saving."""
    low, high = row["by"][name]["interval_ns"]
    return bool(low <= row["measured"]["ns"] <= high)


def summary(cases: list[dict[str, Any]], failed: list[dict[str, Any]], title: str, source: str) -> str:
    """The Markdown."""
    kept = [row for row in cases if row["held_out"]]
    tuning = [row for row in cases if not row["held_out"]]
    text = [
        f"# {title}",
        "",
        f"Made by `benchmarks/lab.py report` from `{source}`; errors are predicted minus measured, in percentage "
        "points of the untraced step.",
        "",
        f"## Held-out cases: {len(kept)}",
        *table(kept),
    ]
    if tuning:
        text += ["", f"## Tuning cases: {len(tuning)} (the factors were chosen on these)", *table(tuning)]
    for name in CLASSES[:2]:
        mine = [row for row in kept if name in row["by"]]
        if not mine:
            continue
        text += ["", f"## Held-out cases by kind (input: {name})", *groups(mine, name)]
        text += ["", f"## Held-out cases whose measured saving lies outside the {name}'s interval", *misses(mine, name)]
    if failed:
        text += ["", "## Failed", *(f"- {row['group']} ({row['phase']}): {row['failed']}" for row in failed)]
    return "\n".join(text) + "\n"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """One line an input class, with every plain estimator's error under the same input."""
    known = [p for p in PLAIN if any(p in by["plain"] for row in rows for by in row["by"].values())]
    head = (
        "| input | cases | mean error | p95 | held by the interval | median half-width | off by at most 10 %, of cases "
        "with a difference of at least 1 % | " + " | ".join(PLAIN[p] for p in known) + " |"
    )
    made = [head, "|---|" + "---:|" * (6 + len(known))]
    for name in CLASSES:
        mine = [row for row in rows if name in row["by"]]
        if not mine:
            continue
        off = np.abs([error(row, row["by"][name]["ns"]) for row in mine])
        inside = sum(held(row, name) for row in mine)
        low, high = stats.binomtest(inside, len(mine)).proportion_ci(0.95)
        width = [np.diff(row["by"][name]["interval_ns"])[0] / 2 / row["step_ns"] * 100 for row in mine]
        large = [row for row in mine if abs(row["measured"]["ns"]) >= LARGE * row["step_ns"]]
        near = sum(abs(row["by"][name]["ns"] / row["measured"]["ns"] - 1) <= 0.1 for row in large)
        plain = [mean_error(mine, name, p) for p in known]
        made.append(
            f"| {name} | {len(mine)} | **{off.mean():.3f}** | {np.quantile(off, 0.95):.2f} | {inside} of {len(mine)}, "
            f"{inside / len(mine):.0%} [{low:.0%}, {high:.0%}] | {np.median(width):.2f} | {near} of {len(large)} | "
            + " | ".join("" if value is None else f"{value:.3f}" for value in plain)
            + " |"
        )
    return made


def mean_error(rows: list[dict[str, Any]], name: str, plain: str) -> float | None:
    """Mean error of a plain estimator over the cases in which it has its input."""
    known = [(row, row["by"][name]["plain"].get(plain)) for row in rows]
    found = [abs(error(row, ns)) for row, ns in known if ns is not None]
    return float(np.mean(found)) if found else None


def groups(rows: list[dict[str, Any]], name: str) -> list[str]:
    """Error and coverage of an input class by the kind of graph and of boundary."""
    keys: dict[str, Callable[[dict[str, Any]], str]] = {
        "graph": lambda row: kind_of(row["facts"]),
        "boundary": lambda row: str(row["facts"]["boundary"]),
        "batch": lambda row: str(row["facts"]["batch"]),
    }
    made = ["| | cases | mean error | bias | held | best plain estimator |", "|---|---:|---:|---:|---:|---:|"]
    for title, key in keys.items():
        for value in sorted({key(row) for row in rows}, key=lambda v: (len(v), v)):
            mine = [row for row in rows if key(row) == value]
            off = np.array([error(row, row["by"][name]["ns"]) for row in mine])
            plain = [mean_error(mine, name, p) for p in PLAIN if p not in ("isolated_difference", "traced_difference")]
            best = min(value for value in plain if value is not None)
            inside = sum(held(row, name) for row in mine)
            numbers = f"{np.abs(off).mean():.3f} | {off.mean():+.3f} | {inside} | {best:.3f}"
            made.append(f"| {title} {value} | {len(mine)} | {numbers} |")
    return made


def kind_of(facts: dict[str, Any]) -> str:
    """The kind of graph that a case is."""
    if facts["kind"] == "model":
        return f"{facts['model']}, first {facts['layers']} layers"
    if facts["streams"] == 2:
        return "chain, two streams"
    return "chain, programmatic launch" if facts["pdl"] else "chain"


def misses(rows: list[dict[str, Any]], name: str) -> list[str]:
    """What was outside, and what is known of why."""
    made = ["| case | predicted, us | measured, us | ns a site | what is known |", "|---|---:|---:|---:|---|"]
    for row in rows:
        if held(row, name):
            continue
        mine, there = row["by"][name], row["measured"]
        low, high = mine["interval_ns"]
        off = mine["ns"] - there["ns"]
        made.append(
            f"| {row['case']} | {mine['ns'] / 1e3:.1f} [{low / 1e3:.1f}, {high / 1e3:.1f}] | {there['ns'] / 1e3:.1f} "
            f"[{there['interval_ns'][0] / 1e3:.1f}, {there['interval_ns'][1] / 1e3:.1f}] | {off / row['sites']:+.0f} | "
            f"{cause(row, low, high)} |"
        )
    return made


def cause(row: dict[str, Any], low: float, high: float) -> str:
    """The cause of a miss as far as the records show it."""
    there, facts = row["measured"], row["facts"]
    if there["interval_ns"][0] <= high and low <= there["interval_ns"][1]:
        return "the two intervals overlap"
    if facts["pdl"]:
        return "tracing widens the gaps between early launches by more than is taken out"
    if facts["streams"] == 2:
        return "two streams overlap differently when they are traced"
    return "the launches beside the site, or their gaps, changed: not in the split run's trace"
