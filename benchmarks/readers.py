"""How fast large traces become tables, and in how much memory; ratios in one run on one machine.

    python benchmarks/readers.py [--hta PYTHON] [--events N] [--rows N] [--only kineto,nsys]
        [--against FOLDER] --out FILE

Every reading is a process of its own, so that its peak memory is its own. `--hta` names a Python that has
HolisticTraceAnalysis 0.5.0, which reads the same torch.profiler file in the same run. The traces are made by
reader_fixtures.py in a temporary folder and removed. With --against, the files of one reader are read in turn by the
version whose `fusionscope` package lies in FOLDER and by this one: on a machine that others use, the ratio of the
quickest of five holds where seconds do not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import reader_fixtures

#: Prints seconds and peak memory (bytes) of file -> forwards with their boundaries, and what was there before it.
OURS = """
import json, resource, sys, time
from fusionscope.analysis import ruleset
from fusionscope.analysis.attribution import attribute
from fusionscope.analysis.forwards import forwards
from fusionscope.profiler.readers import read_trace
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before, began, worked = peak(), time.perf_counter(), time.process_time()
trace = read_trace(sys.argv[1])
read, read_cpu, after_read = time.perf_counter() - began, time.process_time() - worked, peak()
attribute(trace, forwards(trace)[0], ruleset.load(()))
tables = sum(int(t.memory_usage(deep=True).sum()) for t in (trace.kernels, trace.launches, trace.ranges))
print(json.dumps({"read_s": read, "read_cpu_s": read_cpu, "seconds": time.perf_counter() - began,
                  "start_bytes": before, "peak_bytes": peak(),
                  "peak_read_bytes": after_read, "table_bytes": tables, "kernels": len(trace.kernels)}))
"""
#: HolisticTraceAnalysis to its table of events, and no further.
HTA = """
import json, os, resource, sys, time
from hta.common.trace import Trace
began = time.perf_counter()
trace = Trace(trace_files={0: sys.argv[1]}, trace_dir="")
trace.parse_traces(use_multiprocessing=False)
seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                  "rows": len(trace.get_trace(0))}))
"""
#: A run of 8 ranks, one file each: imported by one process after the other, then by `workers` at once.
RANKS = """
import json, sys, time
from pathlib import Path
from fusionscope.profiler.importing import import_files
files = sorted(Path(sys.argv[1]).glob("rank*.json"))
began = time.perf_counter()
import_files(files[:1])
one = time.perf_counter() - began
began = time.perf_counter()
import_files(files)
print(json.dumps({"one_s": one, "all_s": time.perf_counter() - began, "ranks": len(files)}))
"""
#: A run that is in the store already, opened.
STORED = """
import json, sys, time
from fusionscope.profiler.store import Store
began = time.perf_counter()
run = Store(sys.argv[1]).load(sys.argv[2])
print(json.dumps({"seconds": time.perf_counter() - began, "kernels": len(run.trace.kernels)}))
"""


def measured(code: str, *arguments: str, python: str = sys.executable, packages: str = "") -> dict[str, float]:
    """What one process printed last; its standard error on failure. `packages` is where another version lies."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"PYTHONPATH": packages} if packages else {})
    done = subprocess.run(
        [python, "-c", code, *arguments], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def kineto(folder: Path, args: argparse.Namespace) -> dict[str, object]:
    path = folder / "trace.json"
    reader_fixtures.kineto(path, args.events)
    size = path.stat().st_size
    ours = measured(OURS, str(path))
    found: dict[str, object] = {
        "file_mb": size / 1e6,
        "events": args.events,
        "ours": ours,
        "mb_per_s": size / 1e6 / ours["seconds"],
        "peak_over_file": (ours["peak_bytes"] - ours["start_bytes"]) / size,
    }
    if args.hta:
        theirs = measured(HTA, str(path), python=args.hta)
        found |= {
            "hta": theirs,
            "times_faster_than_hta": theirs["seconds"] / ours["seconds"],
            "memory_over_hta": ours["peak_bytes"] / theirs["peak_bytes"],
        }
    return found


def _rows(name: str, make: Callable[[Path, int], None]) -> Callable[[Path, argparse.Namespace], dict[str, object]]:
    def run(folder: Path, args: argparse.Namespace) -> dict[str, object]:
        path = folder / name
        make(path, args.rows)
        if args.against:
            return in_turn(path, str(args.against.resolve()))
        ours = measured(OURS, str(path))
        above = ours["peak_read_bytes"] - ours["start_bytes"] - ours["table_bytes"]
        size = path.stat().st_size / 1e6
        return {"file_mb": size, "rows": args.rows, "ours": ours, "read_mb_per_cpu_s": size / ours["read_cpu_s"],
                "mb_above_tables": above / 1e6}  # fmt: skip

    return run


def in_turn(path: Path, other: str) -> dict[str, object]:
    """CPU seconds to the tables, of another version and of this one."""
    times: dict[str, list[float]] = {"before": [], "after": []}
    for _ in range(5):
        for name, packages in (("before", other), ("after", "")):
            times[name].append(round(measured(OURS, str(path), packages=packages)["read_cpu_s"], 3))
    least = {name: min(values) for name, values in times.items()}
    size = path.stat().st_size / 1e6
    return {
        "file_mb": size,
        **{f"{name}_read_cpu_s": values for name, values in times.items()},
        "times_faster": round(least["before"] / least["after"], 2),
        "read_mb_per_cpu_s": round(size / least["after"], 1),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def ranks(folder: Path, args: argparse.Namespace) -> dict[str, object]:
    for rank in range(8):
        reader_fixtures.kineto(folder / f"rank{rank}.json", args.events)
    found = measured(RANKS, str(folder))
    return {**found, "speedup": found["ranks"] * found["one_s"] / found["all_s"]}


def stored(folder: Path, args: argparse.Namespace) -> dict[str, object]:
    path = folder / "trace.sqlite"
    reader_fixtures.nsys(path, args.rows // 10)
    store = folder / "store"
    command = "from fusionscope.cli.main import run; run()"
    subprocess.run(
        [sys.executable, "-c", command, "import", str(path), "--store", str(store), "--name", "large"],
        check=True, capture_output=True,
    )  # fmt: skip
    return measured(STORED, str(store), "large")


PARTS: dict[str, Callable[[Path, argparse.Namespace], dict[str, object]]] = {
    "kineto": kineto,
    "nsys": _rows("trace.sqlite", reader_fixtures.nsys),
    "rocprofv3": _rows("trace.csv", reader_fixtures.rocprofv3),
    "rocprofv3_json": _rows("x_results.json", reader_fixtures.rocprofv3_json),
    "rocpd": _rows("x_results.db", reader_fixtures.rocpd),
    "perfetto": _rows("x_results.pftrace", reader_fixtures.perfetto),
    "rpd": _rows("x.rpd", reader_fixtures.rpd),
    "rocprof_text": _rows("out.txt", reader_fixtures.rocprof_text),
    "ranks": ranks,
    "stored": stored,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hta", default="", help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="of another version, as on PYTHONPATH")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    results: dict[str, object] = json.loads(args.out.read_text()) if args.out.exists() else {}
    results["machine"] = {"cpu": _cpu(), "cores": os.cpu_count(), "python": platform.python_version()}
    for part in args.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            results[part] = PARTS[part](Path(folder), args)
        print(part, json.dumps(results[part]), file=sys.stderr)
        # Each part is kept as soon as it is known.
        args.out.write_text(json.dumps(results, indent=1) + "\n")


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
