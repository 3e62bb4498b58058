"""Do the profilers, and the two ways to attribute, tell the same of one decode step? A table as JSON.

    python benchmarks/profilers.py STORE... --out benchmarks/results/h200_profilers.json

Expects captures of all 45 layers at batch 4, under nsys and CUPTI for each choice of paths, and under the torch
profiler for the first (for others they are taken where they are there):

    fusionscope capture --model glm-5.3-flash --tp 4 --batch 4 --profiler nsys --paths mhc_post=split --store STORE
    ... --paths mhc_post=triton, and mhc_post=triton,moe_finalize=triton

A site agrees where the nodes that the capture marked (rung 1) and the rules by kernel name (rung 4) give it the same
launches. Exit code 2 where a capture is missing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from stored import Missing, analysed, find, head, open_stores, times, write

from fusionscope.profiler.store import Run

BATCH = 4
CHOICES: dict[str, tuple[str, ...]] = {"split": (), "fused": ("mhc_post",), "both": ("mhc_post", "moe_finalize")}
NEEDED = [(name, profiler) for name in CHOICES for profiler in ("nsys", "cupti")] + [("split", "torch")]
OPTIONAL = [("fused", "torch"), ("both", "torch")]


def main() -> int:
    """Write the table and print its lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        runs = open_stores(options.stores)
        found = {(name, profiler): find(runs, profiler, BATCH, CHOICES[name]) for name, profiler in NEEDED}
        document = head(list(found.values()))
    except Missing as error:
        print(error, file=sys.stderr)
        return 2
    for name, profiler in OPTIONAL:
        try:
            found[name, profiler] = find(runs, profiler, BATCH, CHOICES[name])
        except Missing:
            print(f"no capture of {name} under {profiler}: left out")
    lines = [row(name, found[name, p]) for name in CHOICES for p in ("nsys", "cupti", "torch") if (name, p) in found]
    document |= {"batch": BATCH, "captures": lines}
    write(options.out, document)
    for line in lines:
        print(
            f"{line['paths']:6}{line['profiler']:6} {line['launches']} launches, kernels "
            f"{line['traced_kernel_time_ns'] / 1e3:.1f} us, span {line['traced_span_ns'] / 1e3:.1f} us, untraced "
            f"{line['untraced_ns'] / 1e3:.1f} us; sites {line['sites']}"
        )
    return 0


def row(name: str, run: Run) -> dict[str, Any]:
    """One capture: times, and how many sites both ways of attribution agree on."""
    return {"paths": name, "profiler": run.info.profiler, **times(analysed(run)), "sites": agreement(run)}


def agreement(run: Run) -> dict[str, Any]:
    """Per boundary: marked sites, ruled sites, and those with the same launches; marked is None without node ids."""
    by_rules = analysed(run, 4).attribution.sites
    if (run.trace.kernels["node"] < 0).all():
        return {kind: {"marked": None, "ruled": len(sites), "same": None} for kind, sites in by_rules.items() if sites}
    marks = analysed(run, 1).attribution.sites
    return {
        kind: {
            "marked": len(marks[kind]),
            "ruled": len(by_rules[kind]),
            "same": len({s.columns for s in marks[kind]} & {s.columns for s in by_rules[kind]}),
        }
        for kind in by_rules
        if marks[kind] or by_rules[kind]
    }


if __name__ == "__main__":
    sys.exit(main())
