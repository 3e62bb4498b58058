"""The lab set: savings predicted from the split run, then measured, for many cases on one GPU.

    python benchmarks/lab.py run OUT --seconds 400      traces, predictions, measurements; resumes what OUT holds
    python benchmarks/lab.py noise OUT --make FILE      A/A, injected delays and the knock-out on the sample graph
    python benchmarks/lab.py report OUT [--also OUT2]   joins them: h200_lab.jsonl and h200_lab_summary.md

`run` starts processes: one traces every case with CUPTI (`traces/CASE.npz`); others, which no profiler has touched,
time the split step, write the prediction, and only then measure the candidate in ABBA blocks with an A/A arm. Every
case is a line of its own in OUT/*.jsonl, also where it failed. Needs a CUDA GPU, torch, triton, cuda-bindings and
cupti-python.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROCESSES = 2


def main() -> int:
    """One of run, worker, noise, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "worker", "noise", "report"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=600, help="stop starting new cases after so long")
    parser.add_argument("--phase", choices=("build", "trace", "measure"))
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--only", default="", help="groups whose name contains one of these words (comma-separated)")
    parser.add_argument("--set", choices=("all", "tuning", "held-out"), default="all")
    parser.add_argument("--make", type=Path, help="make.py of the sample graph, for `noise`")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="more folders for `report`")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.what == "run":
        return run(options)
    if options.what == "worker":
        import lab_worker

        return lab_worker.work(options)
    if options.what == "noise":
        import lab_noise

        return lab_noise.work(options)
    import lab_report

    return lab_report.write([options.out, *options.also], options.results)


def run(options: argparse.Namespace) -> int:
    """Trace, then measure in several processes; each gets its share of what is left of the time."""
    until = time.monotonic() + options.seconds
    phases = [("trace", 0), *(("measure", k) for k in range(PROCESSES))]
    shares = [0.45, 0.85, 1.0]
    for (phase, process), share in zip(phases, shares, strict=True):
        left = until - time.monotonic()
        command = [sys.executable, __file__, "worker", str(options.out), "--phase", phase, "--process", str(process)]
        command += ["--seconds", f"{left * share:.0f}", "--set", options.set, "--only", options.only]
        begin = time.monotonic()
        code = subprocess.run(command, env={**os.environ, "PYTHONUNBUFFERED": "1"}).returncode
        print(f"{phase} {process}: exit {code}, {time.monotonic() - begin:.0f} s", flush=True)
    return 0


def lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of results; a last line that was cut off is left out."""
    found = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return found


def add(path: Path, row: dict[str, Any]) -> None:
    """Append one line, and see that it is on the disk."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
        file.flush()
        os.fsync(file.fileno())


if __name__ == "__main__":
    sys.exit(main())
