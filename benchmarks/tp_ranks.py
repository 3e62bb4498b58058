"""What each rank of a run of several GPUs did: launches, times, and its all-reduces as transfer and wait. As JSON.

fusionscope capture --model glm-5.3-flash --tp 2 --layers 5 --profiler nsys --name tp2
python benchmarks/tp_ranks.py --store STORE --out FILE.json tp2 [RUN…]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from fusionscope.analysis.analysed import analyse
from fusionscope.analysis.waiting import MEETING
from fusionscope.profiler.store import Run, Store

MACHINE = ("gpu", "gpus", "driver", "cuda", "torch", "triton")


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--store", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--note", default="", help="a sentence that belongs with the figures")
    options = parser.parse_args()
    runs = [Store(options.store).load(ref) for ref in options.runs]
    told = {
        "what": "one decode forward of each rank, medians over the traced replays after the first, ns; the shortest "
        "duration of an all-reduce over the ranks is its transfer, the rest is wait",
        "note": options.note,
        "machine": {k: v for k, v in runs[0].info.machine.items() if k in MACHINE},
        "runs": [described(run) for run in runs],
    }
    options.out.write_text(json.dumps(told, indent=1) + "\n")
    print(json.dumps(told, indent=1))


def described(run: Run) -> dict[str, Any]:
    """One run, rank by rank."""
    info = run.info
    ranks = sorted(int(r) for r in run.trace.kernels["rank"].unique())
    return {
        "model": info.model,
        "tp": info.tp,
        "batch": info.batch,
        "context": info.context,
        "layers": info.layers,
        "profiler": info.profiler,
        "paths": info.paths,
        "labels": info.labels,
        "ranks": [ranked(run, rank) for rank in ranks],
    }


def ranked(run: Run, rank: int) -> dict[str, Any]:
    """One rank of a run."""
    found = analyse(run, rank=rank)
    forward, wait = found.forward, found.wait()
    met = [c for c, role in enumerate(found.attribution.roles) if role in MEETING]
    reduced = forward.duration[:, met].sum(axis=1)
    waited = wait[:, met].sum(axis=1) if wait is not None else None
    return {
        "rank": rank,
        "launches": forward.launches,
        "replays": forward.replays,
        "kernel_time_ns": float(np.median(forward.kernel_time)),
        "span_ns": float(np.median(forward.span)),
        "untraced_ns": found.untraced.median_ns if found.untraced else None,
        "sites": {kind: len(sites) for kind, sites in found.attribution.sites.items() if sites},
        "all_reduces": len(met),
        "all_reduce_ns": float(np.median(reduced)),
        "transfer_ns": None if waited is None else float(np.median(reduced - waited)),
        "wait_ns": None if waited is None else float(np.median(waited)),
    }


if __name__ == "__main__":
    main()
