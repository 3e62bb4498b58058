"""The lab set: savings predicted from the split run, then measured, for many cases on one kind of GPU.

    python benchmarks/lab.py build OUT --gpus 0,1                 compiles what the cases need, in many processes
    python benchmarks/lab.py run OUT --gpus 0,1 --seconds 400     traces, predicts, measures; resumes what OUT holds
    python benchmarks/lab.py noise OUT --make FILE                A/A, injected delays, knock-outs on the sample graph
    python benchmarks/lab.py report OUT [--also OUT2 ...]         joins the cases: h200_lab4.jsonl and its summary

`run` starts two processes on each GPU: one traces a group of cases with CUPTI (`gpuN/traces/CASE.npz`); the other,
which no profiler has touched, times the split step, writes the prediction, and only then measures the candidates in
ABBA blocks. Every case is a line of its own, also where it failed. Needs a CUDA GPU, torch, triton, cuda-bindings,
cupti-python and, for its cases, flashinfer.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    """One of build, run, worker, noise, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("build", "run", "worker", "noise", "report"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=600, help="stop starting new cases after so long")
    parser.add_argument("--phase", choices=("build", "trace", "measure"))
    parser.add_argument("--process", type=int, default=0, help="for `noise`")
    parser.add_argument("--of", type=int, default=1, help="processes that take turns, for `noise`")
    parser.add_argument("--share", default="0/1", help="the part K/N of the groups that a building process takes")
    parser.add_argument("--gpus", default="0", help="devices, comma-separated")
    parser.add_argument("--processes", type=int, default=21, help="for `build`")
    parser.add_argument("--only", default="", help="groups whose name contains one of these words (comma-separated)")
    parser.add_argument("--set", choices=("first", "second", "third", "fourth"), default="fourth")
    parser.add_argument("--make", type=Path, help="make.py of the sample graph, for `noise`")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="more folders for `report`")
    parser.add_argument("--anew", action="store_true", help="for `report`: predict once more, with today's constants")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.what in ("build", "run"):
        import lab_turns

        return lab_turns.build(options) if options.what == "build" else lab_turns.run(options)
    if options.what == "worker":
        import lab_worker

        return lab_worker.work(options)
    if options.what == "noise":
        import lab_noise

        return lab_noise.work(options)
    import lab_report

    folders = [part for folder in (options.out, *options.also) for part in (folder, *sorted(folder.glob("gpu*")))]
    return lab_report.write(folders, options.results, options.set, options.anew)


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
