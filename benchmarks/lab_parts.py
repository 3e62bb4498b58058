"""What the errors of the lab's predictions are made of: the measurement's captures, the traced captures, and the rest.

    python benchmarks/lab_parts.py        reads results/h200_lab*.jsonl, writes results/h200_lab_parts.json

All in percentage points of the step. A measured saving is a mean over captures whose times differ, and so is a
prediction that several traced captures went into; what neither explains is the model's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lab import lines
from lab_refit import GONE
from lab_report import CLASSES, SETS, error

from fusionscope.analysis.target import TAKEN_NS

RESULTS = Path(__file__).parent / "results"
Rows = Sequence[dict[str, Any]]
#: What a launch that went took along at the least when a set was predicted, ns.
LEAST = {"third": 100.0, "fourth": TAKEN_NS}
#: What the mean absolute value of a normal error is of its standard deviation.
MEAN_ABS = float(np.sqrt(2 / np.pi))


def main() -> int:
    """Write the result file and print it."""
    sets = {name: held_out(stem) for name, (stem, _) in SETS.items() if (RESULTS / f"{stem}.jsonl").is_file()}
    made = {name: parts(rows, LEAST.get(name, 0.0)) for name, rows in sets.items()}
    print(json.dumps(made, indent=1))
    (RESULTS / "h200_lab_parts.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return 0


def held_out(stem: str) -> Rows:
    """The held-out cases of a set."""
    return [row for row in lines(RESULTS / f"{stem}.jsonl") if row.get("held_out")]


def parts(rows: Rows, least: float) -> dict[str, Any]:
    """Everything that is said of one set; `least` as of `taken_along`."""
    found: dict[str, Any] = {"cases": len(rows), "perfect_prediction": perfect(rows), "classes": {}}
    found["taken_along"] = taken_along(rows, least)
    for name in CLASSES[:2]:
        mine = [row for row in rows if name in row["by"]]
        if not mine:
            continue
        off = np.array([error(row, row["by"][name]["ns"]) for row in mine])
        of_measuring = np.array([np.sqrt(measured_variance(row)) / row["step_ns"] * 100 for row in mine])
        found["classes"][name] = {
            "mean_error": _round(np.abs(off).mean()),
            "bias": _round(off.mean()),
            "root_mean_square": _round(np.sqrt(np.mean(off**2))),
            "of_measuring": _round(np.sqrt(np.mean(of_measuring**2))),
            "median_square_root": _round(np.sqrt(np.median(off**2))),
            "of_measuring_median": _round(np.sqrt(np.median(of_measuring**2))),
            **traced(mine, name),
        }
    return found


def perfect(rows: Rows) -> dict[str, float]:
    """Mean error of a prediction without any, by how many captures each arm was measured with, and as it was."""
    one, own = (
        [np.sqrt(measured_variance(row, each)) / row["step_ns"] * 100 for row in rows] for each in (True, False)
    )
    found = {str(n): _round(np.mean(one) * MEAN_ABS / np.sqrt(n)) for n in (1, 2, 3, 4, 6, 8)}
    return found | {"as measured": _round(np.mean(own) * MEAN_ABS)}


def measured_variance(row: dict[str, Any], each: bool = False) -> float:
    """Variance of a measured saving from its captures, ns^2; of one with a single capture of each arm if `each`."""
    found = row["measured"]
    arms = [np.array(found[arm]).reshape(found["processes"], -1).mean(axis=0) for arm in ("split_ns", "fused_ns")]
    return sum(float(np.var(a, ddof=1)) / (1 if each else len(a)) for a in arms if len(a) > 1)


def taken_along(rows: Rows, least: float) -> dict[str, Any]:
    """Mean error of the fused time alone by what of tracing a launch that goes takes along, ns.

    `least` is what the stored predictions took along at the least. Of graphs of one stream without early launches, as
    far as it is known how many launches went.
    """
    chosen = [(row, gone(row)) for row in rows if row["facts"]["streams"] == 1 and not row["facts"]["pdl"]]
    known = [(row, n) for row, n in chosen if n is not None]
    found: dict[str, Any] = {"cases": len(known)}
    for ns in (0, 50, 75, 100, 130, 150, 200):
        errors = []
        for row, n in known:
            # What the stored predictions took along.
            whole = row["by"]["candidate"]["ns"] + n * max(row["tracer_ns"] / 2, least)
            errors.append(abs(error(row, whole - n * ns)))
        found[str(ns)] = _round(np.mean(errors))
    return found


def gone(row: dict[str, Any]) -> int | None:
    """Launches that go; of the first set known of chains only."""
    if "launches" in row:
        return int(row["launches"] - row["fused_launches"])
    if row["facts"]["kind"] != "chain":
        return None
    return int(row["sites"]) * GONE.get(row["facts"]["boundary"], 1)


def traced(rows: Rows, name: str) -> dict[str, Any]:
    """With today's constants: the error, how far predictions from one traced capture differ, and how good one is."""
    mine = [row for row in rows if row.get("one_capture", {}).get(name)]
    if not mine:
        return {}
    now = [abs(error(row, row["again"][name]["ns"])) for row in mine]
    inside = [
        row["again"][name]["interval_ns"][0] <= row["measured"]["ns"] <= row["again"][name]["interval_ns"][1]
        for row in mine
    ]
    spread = [np.std(row["one_capture"][name], ddof=1) / row["step_ns"] * 100 for row in mine]
    alone = [np.mean([abs(error(row, ns)) for ns in row["one_capture"][name]]) for row in mine]
    return {
        "today": {
            "mean_error": _round(np.mean(now)),
            "p95": _round(np.quantile(now, 0.95)),
            "inside": int(sum(inside)),
        },
        "one_capture": {"spread": _round(np.sqrt(np.mean(np.square(spread)))), "mean_error": _round(np.mean(alone))},
    }


def _round(value: Any) -> float:
    return round(float(value), 4)


if __name__ == "__main__":
    raise SystemExit(main())
