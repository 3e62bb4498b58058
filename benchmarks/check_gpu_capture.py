"""Do the profilers agree? One forward on one GPU under torch, CUPTI and Nsight: launches exactly, kernel time to 5 %.

    python benchmarks/check_gpu_capture.py [--layers 5] [--batch 4] [--paths mhc_post=triton] [--store DIR]

Prints a table and leaves the runs in the store. A profiler that names graph nodes must have traced every node of a
site; torch names none, so it is compared by launches and times alone. Exit code 1 where two profilers disagree, 2
where a capture failed. A profiler that the machine lacks is named, and skipped only with --allow-missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fusionscope.profiler.capture import cupti, nsys
from fusionscope.profiler.store import Run, Store

TOLERANCE = 0.05
COMMAND = [sys.executable, "-c", "from fusionscope.cli.main import run; run()"]


def main() -> int:
    """Capture under every profiler and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="glm-5.3-flash")
    parser.add_argument("--tp", default="4")
    parser.add_argument("--batch", default="4")
    parser.add_argument("--layers", default="5")
    parser.add_argument("--paths", default="")
    parser.add_argument("--profilers", default="torch,cupti,nsys")
    parser.add_argument("--store", type=Path, default=Path(tempfile.gettempdir()) / "fusionscope-check")
    parser.add_argument("--out", type=Path, help="write the table as JSON as well")
    parser.add_argument("--allow-missing", action="store_true")
    options = parser.parse_args()
    reasons = {"cupti": cupti.unavailable, "nsys": nsys.unavailable}
    rows: list[dict[str, Any]] = []
    for profiler in options.profilers.split(","):
        reason = reasons[profiler]() if profiler in reasons else ""
        if reason and options.allow_missing:
            print(f"{profiler}: skipped, {reason}")
            continue
        run = captured(options, profiler)
        if run is None:
            return 2
        rows.append(row(run, profiler))
    print_table(rows)
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")
    return verdict(rows)


def captured(options: argparse.Namespace, profiler: str) -> Run | None:
    """One capture by the command itself; None where it failed, after its sentence."""
    chosen = {
        "--model": options.model,
        "--tp": options.tp,
        "--batch": options.batch,
        "--layers": options.layers,
        "--profiler": profiler,
        "--device": "cuda",
        "--store": str(options.store),
    }
    if options.paths:
        chosen["--paths"] = options.paths
    line = [*COMMAND, "capture", "--json", *(part for pair in chosen.items() for part in pair)]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(f"{profiler}: the capture failed with exit code {done.returncode}")
        return None
    return Store(options.store).load(json.loads(done.stdout)["run"])


def row(run: Run, profiler: str) -> dict[str, Any]:
    """Launches and times of one replay of rank 0 (medians over the replays that count)."""
    kernels = run.trace.kernels
    replays = kernels[
        (kernels["rank"] == 0) & (kernels["kind"] == "kernel") & (kernels["replay"] >= run.info.warmup_replays)
    ]
    by_replay = replays.groupby("replay")
    launches = by_replay.size()
    ends = (replays["start_ns"] + replays["duration_ns"]).groupby(replays["replay"]).max()
    timings = run.trace.timings
    untraced = timings[(timings["rank"] == 0) & (timings["source"] == "untraced")]["duration_ns"]
    # A site may hold a copy or a memset as well, which is a node and no launch.
    nodes = sorted(kernels[(kernels["rank"] == 0) & (kernels["node"] >= 0)]["node"].unique())
    sites = run.trace.sites
    marked = set(sites[sites["rank"] == 0]["node"])
    return {
        "profiler": profiler,
        "run": run.info.id,
        "replays": len(launches),
        "launches": sorted(int(count) for count in launches.unique()),
        "nodes": [int(nodes[0]), int(nodes[-1])] if nodes else [],
        # The torch profiler names no nodes; that is nothing it could disagree in.
        "site_nodes_traced": len(marked & set(nodes)) if nodes else "no node ids",
        "site_nodes": len(marked),
        "kernel_time_ns": float(np.median(by_replay["duration_ns"].sum())) if len(launches) else 0.0,
        "span_ns": float(np.median(ends - by_replay["start_ns"].min())) if len(launches) else 0.0,
        "untraced_ns": float(untraced.median()) if len(untraced) else 0.0,
        "names": int(replays["name"].astype(str).nunique()),
        "labels": run.info.labels,
        "warnings": run.info.warnings,
    }


def print_table(rows: list[dict[str, Any]]) -> None:
    """The rows side by side."""
    columns = list(rows[0]) if rows else []
    for column in columns:
        print(f"{column:18}", *(f"{row[column]!s:>26}" for row in rows))


def verdict(rows: list[dict[str, Any]]) -> int:
    """0 where all agree; says what does not."""
    wrong = []
    first = rows[0]
    for row in rows:
        if len(row["launches"]) != 1 or row["launches"] != first["launches"]:
            wrong.append(
                f"{row['profiler']} counts {row['launches']} launches, {first['profiler']} {first['launches']}"
            )
        if abs(row["kernel_time_ns"] / first["kernel_time_ns"] - 1) > TOLERANCE:
            wrong.append(
                f"{row['profiler']}'s kernel time is {row['kernel_time_ns'] / first['kernel_time_ns']:.3f} of it"
            )
        if row["profiler"] != "torch" and row["site_nodes_traced"] != row["site_nodes"]:
            wrong.append(f"{row['profiler']} traced {row['site_nodes_traced']} of {row['site_nodes']} nodes of sites")
    print("\n".join(wrong) or "All profilers agree.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
