"""How far two captures of one program lie apart, of the stored lab cases: what a difference of single captures hides.

    python benchmarks/lab_captures.py     reads results/h200_lab.jsonl, writes results/h200_captures.json

Each arm of a case was captured two or three times in a process, in one or two processes; a split arm that several
cases share counts once. Every pair of captures of an arm is one distance, in parts of the step; every arm weighs as
much as another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from lab import lines
from numpy.typing import NDArray

RESULTS = Path(__file__).parent / "results"
SEED = 7


def main() -> int:
    """Write the result file and print it."""
    rows = [row for row in lines(RESULTS / "h200_lab.jsonl") if "case" in row]
    arms = list(distinct(rows))
    made = {
        "what": "distance of two captures of one program on an H200, parts of the step; range: bootstrap over arms",
        "in_one_process": told([within(times) for times in arms]),
        "in_two_processes": told([across(times) for times in arms if len(times) > 1]),
    }
    print(json.dumps(made, indent=1))
    (RESULTS / "h200_captures.json").write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return 0


def distinct(rows: list[dict[str, Any]]) -> Iterator[NDArray[np.float64]]:
    """[processes, captures] ns of each arm that was measured."""
    seen = set()
    for row in rows:
        found = row["measured"]
        for arm in ("split_ns", "fused_ns"):
            times = np.array(found[arm], dtype=float).reshape(found["processes"], -1)
            if times.tobytes() not in seen:
                seen.add(times.tobytes())
                yield times


def within(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distances of the captures of each process, in parts of their mean."""
    first, second = np.triu_indices(times.shape[1], 1)
    found: NDArray[np.float64] = np.abs(times[:, first] - times[:, second]).ravel() / times.mean()
    return found


def across(times: NDArray[np.float64]) -> NDArray[np.float64]:
    """Distances of the captures of one process from those of the other."""
    found: NDArray[np.float64] = np.abs(times[0][:, None] - times[1][None, :]).ravel() / times.mean()
    return found


def told(arms: list[NDArray[np.float64]]) -> dict[str, Any]:
    """Median and 95th percentile, with how sure the latter is."""
    arms = [distances for distances in arms if len(distances)]
    chooser = np.random.default_rng(SEED)
    again = [_quantile([arms[k] for k in chooser.integers(0, len(arms), len(arms))], 0.95) for _ in range(1000)]
    return {
        "arms": len(arms),
        "pairs": sum(map(len, arms)),
        "median": round(_quantile(arms, 0.5), 5),
        "p95": round(_quantile(arms, 0.95), 5),
        "p95_range": [round(float(end), 5) for end in np.quantile(again, [0.025, 0.975])],
    }


def _quantile(arms: list[NDArray[np.float64]], part: float) -> float:
    """The quantile of all distances, each arm of weight 1."""
    values = np.concatenate(arms)
    weights = np.concatenate([np.full(len(distances), 1 / len(distances)) for distances in arms])
    order = np.argsort(values)
    upto = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][np.searchsorted(upto, part)])


if __name__ == "__main__":
    raise SystemExit(main())
