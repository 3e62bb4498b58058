"""Predictions for real ranks held against what is measured afterwards, many pairs in few starts. As JSON.

    python benchmarks/tp_pairs.py --tp 2 --out DIR                       # traces (CUPTI), predicts, measures
    python benchmarks/tp_pairs.py --tp 2 --out DIR --profiler nsys       # traces alone
    python benchmarks/tp_pairs.py --device cpu --profiler torch --models tiny --out DIR   # gloo

A case is a model at one batch, of the first --layers layers: the split step, and one step for each boundary and path
that is fused. Stages, each one start of all ranks (tp_pairs_worker.py):
trace    every step under the profiler
measure  a process that no profiler touches times the split step alone, and waits; the saving of every pair is
         predicted from the split traces, those times and the fused site's time in its trace, and written
         (predicted.json, with the time of day); then all steps are timed in ABBA blocks, --captures captures of each
--processes 2 measures once more in another start. DIR/tp_pairs.json holds, for every traced step, what
benchmarks/tp_ranks.py tells of each rank, and every pair: predicted, measured, the error in points of the step. A case
that fails is named and the others go on; none is begun after --seconds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
from tp_captures import MACHINE, prediction
from tp_pairs_worker import BASE, REPLAYS, Arm, Case, Plan, blocks_file, predicted_file, read_plan
from tp_ranks import described

from fusionscope.analysis import ab
from fusionscope.analysis.analysed import analyse
from fusionscope.profiler import measure
from fusionscope.profiler.capture import collect, messages, nsys, session
from fusionscope.profiler.readers import read_trace
from fusionscope.profiler.store import Run, Store
from fusionscope.profiler.trace import Trace, table

ARMS = {
    "glm-5.3-flash": ("mhc_post=triton", "moe_finalize=triton", "mhc_post_pre=triton"),
    "deepseek-v3": ("ar_norm=triton", "ar_norm=flashinfer", "moe_finalize=triton", "moe_finalize=flashinfer"),
    "tiny": ("mhc_post=inductor",),
}
WORKER = Path(__file__).with_name("tp_pairs_worker.py")
#: No case is begun so many seconds before its stage must have ended.
CASE = 15
Told = dict[str, Any]


class Ranks:
    """All ranks of one stage, started at once and ended together."""

    def __init__(self, plan_file: Path, stage: str, process: int, end: float, prefix: list[str]) -> None:
        plan, until = read_plan(plan_file), end - CASE
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        line = [
            *prefix, sys.executable, str(WORKER), "--plan", str(plan_file), "--stage", stage, "--process", str(process),
            "--until", str(until),
        ]  # fmt: skip
        shared = {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(plan.tp),
            "STARTED": str(time.time()), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        shared |= session.environment(plan.capture(plan.cases[0], {}))
        self.until = end
        self.children = [
            subprocess.Popen(
                line, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, start_new_session=True
            )
            for rank in range(plan.tp)
        ]

    def wait(self, meanwhile: Callable[[], object] = lambda: None) -> bool:
        """Until all have ended well, or one has not, or the time is over; no rank is left."""
        while any(child.poll() is None for child in self.children):
            if time.time() > self.until or any(child.poll() for child in self.children):
                time.sleep(2)  # the others may be about to say why
                self.end()
                return False
            meanwhile()
            time.sleep(0.1)
        meanwhile()
        return not any(child.returncode for child in self.children)

    def end(self) -> None:
        """End what still runs: kindly, and then not."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in self.children:
                if child.poll() is None:
                    os.killpg(child.pid, number)
            for child in self.children:
                try:
                    child.wait(5)
                except subprocess.TimeoutExpired:
                    continue


def cut(trace: Trace, number: int) -> Trace:
    """The last replays of a trace's `number`-th graph, in the order of first launches, as if recorded alone."""
    inside = trace.kernels[trace.kernels["graph"] >= 0]
    order = inside.groupby("graph")["start_ns"].min().sort_values().index
    kernels = inside[inside["graph"] == order[number]].copy()
    replays = kernels["replay"].rank(method="dense").astype("int64")
    kernels["replay"] = replays - max(int(replays.max()) - REPLAYS, 0) - 1
    kernels = kernels[kernels["replay"] >= 0]
    launches = trace.launches[trace.launches["correlation"].isin(set(kernels["correlation"]))]
    return replace(
        trace, kernels=table("kernels", kernels), launches=table("launches", launches), ranges=table("ranges")
    )


class Traces:
    """From what the ranks left to runs in the store."""

    def __init__(self, plan: Plan, out: Path) -> None:
        self.plan, self.out, self.store = plan, out, Store(out / "store")
        self._shared: dict[int, Trace] = {}

    def run(self, case: Case, name: str) -> Run:
        """The run of one choice of paths, with the split step's own times where they are there."""
        folder, plan = self.out / case.name / name, self.plan.capture(case, case.choices()[name])
        reports = {phase: self._reports(folder, phase) for phase in ("untraced", "traced")}
        if self.plan.profiler == "nsys":
            trace = self._cut(case, name, reports)
        else:
            trace = collect.trace_of(plan, folder, reports)
        info = session.run_info(plan, reports, trace, f"{case.name} {name}", [])
        return self.store.save(info, trace)

    def traced(self, case: Case) -> bool:
        """Whether all ranks left all traces of a case."""
        folders = [self.out / case.name / name for name in case.choices()]
        return all(len(self._reports(folder, "traced")) == self.plan.tp for folder in folders)

    def timed(self, case: Case) -> bool:
        """Whether all ranks timed the split step."""
        return len(self._reports(self.out / case.name / BASE, "untraced")) == self.plan.tp

    def _reports(self, folder: Path, phase: str) -> list[messages.Report]:
        paths = [messages.report_path(folder, phase, rank) for rank in range(self.plan.tp)]
        return [messages.read_report(path) for path in paths if path.is_file()]

    def _cut(self, case: Case, name: str, reports: dict[str, list[messages.Report]]) -> Trace:
        """The same out of a recording that holds every case."""
        steps = [(one.name, choice) for one in self.plan.cases if self.traced(one) for choice in one.choices()]
        parts = []
        for report in reports["traced"]:
            if report.rank not in self._shared:
                self._shared[report.rank] = read_trace(nsys.trace_file(self.out, report.rank))
            one = cut(self._shared[report.rank], steps.index((case.name, name))).with_rank(report.rank)
            graph = int(one.kernels["graph"].iloc[0])
            sites = collect.site_table(report.sites, report.rank, graph)
            parts.append(replace(one, sites=sites, edges=collect.edge_table(report.edges, report.rank, graph)))
        timings = collect.timing_table([report for phase in reports.values() for report in phase])
        return replace(collect.merge(parts), timings=timings)


def told_of(run: Run) -> Told:
    """What is told of a traced step."""
    one = described(run)
    one["launches_equal"] = len({rank["launches"] for rank in one["ranks"]}) == 1
    one["declines"] = sorted({f"{d.boundary}: {d.path}: {d.declined}" for d in run.info.declines})
    return one


def predicted(plan: Plan, case: Case, out: Path) -> Told:
    """Every pair of a case, before its fused steps are measured; times in ns, mean of the ranks."""
    traces = Traces(plan, out)
    base = traces.run(case, BASE)
    told: Told = {"machine": base.info.machine, "runs": [told_of(base)], "pairs": [], "failed": []}
    for arm in case.arms:
        try:
            fused = traces.run(case, arm.name)
            told["runs"].append(told_of(fused))
            told["pairs"].append(one_pair(arm, base, fused))
        except Exception as error:  # the other pairs are worth more
            told["failed"].append(f"{case.name} {arm.name}: {type(error).__name__}: {error}")
    told["written"] = time.time()
    path = predicted_file(out / case.name)
    path.with_suffix(".part").write_text(json.dumps(told, indent=1) + "\n")
    path.with_suffix(".part").replace(path)
    return told


def one_pair(arm: Arm, base: Run, fused: Run) -> Told:
    """What the split run and the fused site's time in the other predict."""
    ranks = []
    for rank in range(base.info.world_size):
        split, other = analyse(base, rank=rank), analyse(fused, rank=rank)
        made, site, wait_known = prediction(arm.boundary, split, other)
        ranks.append(
            {
                "rank": rank,
                "step_ns": split.step_ns(),
                "fused_site_ns": site.time_ns,
                "wait_known": wait_known,
                "predicted_ns": made.saving_ns,
                "interval_ns": list(made.interval_ns),
                "ceiling_ns": made.ceiling_ns,
                "sites": made.sites,
            }
        )
    mean = {key: statistics.fmean(rank[key] for rank in ranks) for key in ("step_ns", "predicted_ns", "ceiling_ns")}
    interval = [statistics.fmean(rank["interval_ns"][end] for rank in ranks) for end in (0, 1)]
    return {"boundary": arm.boundary, "path": arm.path, "sites": ranks[0]["sites"], **mean, "interval_ns": interval,
            "ranks": ranks}  # fmt: skip


def timings_of(plan: Plan, folder: Path, arm: str, processes: int) -> pd.DataFrame:
    """TIMINGS of the split step and one arm, as `fusionscope ab` has them, of rank 0."""
    names = {}
    for choice, called in ((BASE, measure.BASE), (arm, measure.CANDIDATE)):
        names |= {f"{choice} {k}": one for k, one in enumerate(measure.names_of(called, plan.captures))}
    parts = []
    for process in range(processes):
        path = blocks_file(folder, process, 0)
        for line in path.read_text().splitlines() if path.is_file() else ():
            block = json.loads(line)
            rows = [(block["block"], names[name], ns) for name, ns in block["rows"] if name in names]
            part = pd.DataFrame(rows, columns=["block", "arm", "duration_ns"])
            parts.append(part.assign(rank=0, process=process, source="untraced"))
    return table("timings", pd.concat(parts, ignore_index=True) if parts else None)


def measured(plan: Plan, case: Case, arm: Arm, out: Path, processes: int) -> Told:
    """A pair as its blocks have it."""
    found = ab.compare(timings_of(plan, out / case.name, arm.name, processes))
    document = found.document()
    return {key: document[key] for key in ("base_ns", "candidate_ns", "saving", "noise", "captures")}


def collected(plan: Plan, out: Path, processes: int) -> Told:
    """Everything that is known by now."""
    told: Told = {"what": "real ranks, times in ns", "tp": plan.tp, "layers": plan.layers, "context": plan.context,
                  "profiler": plan.profiler, "runs": [], "pairs": [], "failed": []}  # fmt: skip
    for case in plan.cases:
        path = predicted_file(out / case.name)
        if not path.is_file():
            told["failed"].append(f"{case.name}: not predicted")
            continue
        before = json.loads(path.read_text())
        told.setdefault("machine", {k: v for k, v in before["machine"].items() if k in MACHINE})
        told["runs"] += before["runs"]
        told["failed"] += before["failed"]
        for pair in before["pairs"]:
            line = {"model": case.model, "batch": case.batch, **pair, "predicted_at": before["written"]}
            try:
                seen = measured(plan, case, Arm(pair["boundary"], pair["path"]), out, processes)
                first = json.loads(blocks_file(out / case.name, 0, 0).read_text().splitlines()[0])
                error = (pair["predicted_ns"] - seen["saving"]["ns"]) / seen["base_ns"] * 100
                line |= {"measured_from": first["began"], "measured": seen, "error_points": error}
            except Exception as why:
                told["failed"].append(f"{case.name} {pair['boundary']}={pair['path']}: not measured: {why}")
            told["pairs"].append(line)
    errors = [abs(pair["error_points"]) for pair in told["pairs"] if "error_points" in pair]
    if errors:
        told["mean_absolute_error_points"] = statistics.fmean(errors)
    return told


def write(told: Told, out: Path) -> None:
    """The document, and a line a pair to read."""
    (out / "tp_pairs.json").write_text(json.dumps(told, indent=1) + "\n")
    for pair in told["pairs"]:
        named = f"{pair['model']} b{pair['batch']} {pair['boundary']}={pair['path']}"
        saved, step = pair["predicted_ns"] / 1e3, pair["step_ns"] / 1e3
        line = f"{named}: {saved:.1f} us predicted of {step:.1f}"
        if "measured" in pair:
            line += f", {pair['measured']['saving']['ns'] / 1e3:.1f} measured, error {pair['error_points']:+.3f} points"
        print(line, flush=True)
    for line in told["failed"]:
        print(f"FAILED {line}", flush=True)


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--models", default="deepseek-v3,glm-5.3-flash")
    parser.add_argument("--batches", default="16,1,4")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--context", type=int, default=0, help="default: 8192, on the CPU 256")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--profiler", default="cupti", help="cupti, nsys or torch")
    parser.add_argument("--captures", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--replays", type=int, default=3)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600, help="of everything")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def planned(options: argparse.Namespace) -> Plan:
    """The cases: every model at the first batch, then at the next, so that what time cuts off is the last batch."""
    cases = [
        Case(model, int(batch), [Arm(*arm.split("=")) for arm in ARMS[model]])
        for batch in options.batches.split(",")
        for model in options.models.split(",")
    ]
    context = options.context or (8192 if options.device == "cuda" else 256)
    return Plan(
        cases, options.tp, options.layers, context, options.device, options.profiler, options.captures, options.blocks,
        options.replays,
    )  # fmt: skip


def main() -> int:
    """Trace, predict, measure, write."""
    options = parsed()
    began, plan, out = time.time(), planned(options), options.out.resolve()
    end = began + options.seconds
    out.mkdir(parents=True, exist_ok=True)
    plan_file = out / "plan.json"
    plan_file.write_bytes(msgspec.json.encode(plan))
    prefix = nsys.prefix(nsys.require(), out, plan.tp) if plan.profiler == "nsys" else []
    # Kernels compile while the first cases are traced; measuring takes less.
    share = 1.0 if plan.profiler == "nsys" else 1 / (1 + 0.75 * options.processes)
    Ranks(plan_file, "trace", 0, began + share * options.seconds, prefix).wait()
    print(f"traced after {time.time() - began:.0f} s", flush=True)
    traces = Traces(plan, out)
    plan = msgspec.structs.replace(plan, cases=[case for case in plan.cases if traces.traced(case)])
    if not plan.cases:
        print("FAILED no case was traced")
        return 1
    if plan.profiler == "nsys":
        told = collected(plan, out, 0) | {"runs": [], "failed": []}
        for case in plan.cases:
            for name in case.choices():
                try:
                    run = traces.run(case, name)
                    told["machine"] = {k: v for k, v in run.info.machine.items() if k in MACHINE}
                    told["runs"].append(told_of(run))
                except Exception as error:
                    told["failed"].append(f"{case.name} {name}: {type(error).__name__}: {error}")
        write(told, out)
        return 1 if told["failed"] else 0
    plan_file.write_bytes(msgspec.json.encode(plan))
    with ProcessPoolExecutor(8, multiprocessing.get_context("fork")) as pool:
        asked: dict[str, Future[Told]] = {}

        def predict() -> None:
            for case in plan.cases:
                if case.name not in asked and traces.timed(case):
                    asked[case.name] = pool.submit(predicted, plan, case, out)

        for process in range(options.processes):
            Ranks(plan_file, "measure", process, end, []).wait(predict)
            print(f"measured in process {process + 1} after {time.time() - began:.0f} s", flush=True)
            for name, one in asked.items():
                if one.done() and one.exception():
                    print(f"FAILED to predict {name}: {one.exception()}", flush=True)
            write(collected(plan, out, process + 1), out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
