"""Captures of real ranks: split against fused paths, every rank traced, predicted against measured. As JSON.

    python benchmarks/tp_captures.py --tp 2 --store STORE --out benchmarks/results/h200_tp2_captures.json
    python benchmarks/tp_captures.py --tp 2 --device cpu --models tiny --arms inductor --profilers torch --store … …

Of the first --layers layers. For every model and arm the boundary's split run and its fused one; then, with `finalize`
among the --parts, the whole MoE finalize fused on top of that. For each run, rank by rank: launches, kernel time, span,
all-reduces as transfer and wait, and whether the ranks' launches are equal. For each pair: the saving that the first
run and the fused site's time in the second predict (the mean of the ranks), and the one that `fusionscope ab` measures
with both in one process, in percentage points of the step. With --processes 0 the measured one is the difference of the
untraced medians, of a replay's shortest time over the ranks: one that began earlier waits for the others.
A capture that fails, or takes longer than --limit, is named and the others go on; none is started after --seconds. What
the store has already is not made again. Exit code 1 if any failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tp_ranks import described

from fusionscope.analysis import ab
from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.analysis.candidate import fused_in
from fusionscope.analysis.compare import compare
from fusionscope.analysis.estimate import Estimate, Fused, estimate
from fusionscope.profiler.store import Run, Store

COMMAND = [sys.executable, "-c", "from fusionscope.cli.main import run; run()"]
#: The boundary whose fusion is looked at, by how the model carries its residual.
BOUNDARY = {"glm-5.3-flash": "mhc_post", "tiny": "mhc_post"}
MACHINE = ("gpu", "gpus", "driver", "cuda", "torch", "triton")
PARTS = ("boundary", "finalize")
#: Seconds that a capture which is told to end gets for that.
GRACE = 15


class Pair(NamedTuple):
    """Two choices of paths that differ in one boundary."""

    profiler: str
    model: str
    boundary: str
    arm: str
    base: str
    fused: str


def pairs(models: list[str], arms: list[str], profilers: list[str], parts: list[str]) -> Iterator[Pair]:
    """What is captured, the boundaries themselves first."""
    for part in parts:
        for profiler in profilers:
            for model in models:
                kind = BOUNDARY.get(model, "ar_norm")
                for arm in arms:
                    if kind == "mhc_post" and arm == "flashinfer":
                        continue  # no fused operation below compute capability 10
                    fused = f"{kind}={arm}"
                    if part == "boundary":
                        yield Pair(profiler, model, kind, arm, f"{kind}=split", fused)
                    else:
                        yield Pair(profiler, model, "moe_finalize", arm, fused, f"{fused},moe_finalize={arm}")


class Captures:
    """Makes captures, each once, and keeps what is told of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.until = options, time.monotonic() + options.seconds
        self.told: dict[str, Any] = {"what": "real ranks, times in ns", "runs": [], "predicted": [], "failed": []}
        self._made: dict[tuple[str, str, str], Run | None] = {}

    def measured(self, pair: Pair) -> dict[str, Any] | None:
        """Both choices of paths in turn, on real ranks; None where that was not asked for, or failed."""
        options = self.options
        if not options.processes:
            return None
        for run in self._stores(pair.model):
            if run.info.settings.get("candidate") == pair.fused and run.info.paths == chosen(pair.base):
                break
        else:
            arms = {"--base": pair.base, "--candidate": pair.fused, "--processes": options.processes}
            more = {"--captures": options.captures, "--blocks": options.blocks}
            made = self._run(f"ab of {pair.model}: {pair.base} and {pair.fused}", "ab", pair.model, arms | more)
            if made is None:
                return None
            run = made
        found = ab.compare(run.trace.timings)
        document = {key: found.document()[key] for key in ("base_ns", "candidate_ns", "saving", "control", "noise")}
        return document | {"captures": found.captures, "warnings": run.info.warnings}

    def of(self, model: str, profiler: str, paths: str) -> Run | None:
        """The run of these paths; None where it failed."""
        key = (model, profiler, paths)
        if key not in self._made:
            run = self._stored(*key) or self._captured(*key)
            self._made[key] = run
            if run is not None:
                self.told.setdefault("machine", {k: v for k, v in run.info.machine.items() if k in MACHINE})
                one = described(run)
                one["launches_equal"] = len({rank["launches"] for rank in one["ranks"]}) == 1
                one["declines"] = sorted({f"{d.boundary}: {d.path}: {d.declined}" for d in run.info.declines})
                self.told["runs"].append(one)
        return self._made[key]

    def write(self) -> None:
        """The document as it stands."""
        errors = [abs(line["error_points"]) for line in self.told["predicted"]]
        if errors:
            self.told["mean_absolute_error_points"] = statistics.fmean(errors)
        self.options.out.write_text(json.dumps(self.told, indent=1) + "\n")

    def failed(self, what: str, why: str) -> None:
        """Name what is missing, and go on."""
        self.told["failed"].append(f"{what}: {why}")
        print(f"FAILED {what}: {why}", flush=True)

    def _stored(self, model: str, profiler: str, paths: str) -> Run | None:
        runs = self._stores(model)
        return next((r for r in runs if (r.info.profiler, r.info.paths) == (profiler, chosen(paths))), None)

    def _stores(self, model: str) -> Iterator[Run]:
        """What the store has of real ranks of this shape."""
        options = self.options
        for listed in Store(options.store).list() if options.store.is_dir() else []:
            info = listed.info
            # The store lists the examples of the package as well.
            if info is None or listed.path.parent != options.store or info.emulated_ranks:
                continue
            shape = (info.model, info.tp, info.batch, info.layers)
            if shape == (model, options.tp, options.batch, options.layers):
                yield Store(options.store).load(info.id)

    def _captured(self, model: str, profiler: str, paths: str) -> Run | None:
        more = {"--profiler": profiler, "--device": self.options.device, "--paths": paths}
        return self._run(f"{model} under {profiler} with {paths}", "capture", model, more)

    def _run(self, what: str, command: str, model: str, more: dict[str, Any]) -> Run | None:
        """Run one of the project's commands that leaves a run; None where it fails."""
        options = self.options
        limit = min(options.limit, self.until - time.monotonic())
        if limit < GRACE:
            self.failed(what, "not started, the time was over")
            return None
        shape = {"--model": model, "--tp": options.tp, "--batch": options.batch, "--layers": options.layers}
        given = {**shape, **more, "--store": options.store}
        line = [*COMMAND, command, "--json", *(str(part) for pair in given.items() for part in pair)]
        begin = time.monotonic()
        code, out, said = bounded(line, limit)
        taken = time.monotonic() - begin
        if code:
            last = said.strip().splitlines()[-1:] or ["no message"]
            self.failed(what, f"code {code} after {taken:.0f} s: {last[0]}")
            return None
        print(f"captured {what} in {taken:.0f} s", flush=True)
        return Store(options.store).load(json.loads(out)["run"])


def chosen(paths: str) -> dict[str, str]:
    """BOUNDARY=PATH,… as a run has it."""
    return dict(part.split("=") for part in paths.split(","))


def bounded(line: list[str], seconds: float) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command that is told to end after so long, and then made to."""
    child = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(subprocess.TimeoutExpired):
            out, said = child.communicate(timeout=seconds)
            return child.returncode, out, said
        child.send_signal(number)
        seconds = GRACE
    out, said = child.communicate()
    return child.returncode, out, said


def compared(pair: Pair, base: Run, fused: Run, in_turn: dict[str, Any] | None) -> dict[str, Any]:
    """Predicted from the base and the fused site's time, both without wait; measured in turn, else by two processes."""
    ranks = [one_rank(pair.boundary, base, fused, rank) for rank in range(base.info.world_size)]
    predicted = statistics.fmean(rank["predicted_ns"] for rank in ranks)
    step = in_turn["base_ns"] if in_turn else together_ns(base)
    measured = in_turn["saving"]["ns"] if in_turn else step - together_ns(fused)
    return {
        **pair._asdict(),
        "step_ns": step,
        "predicted_ns": predicted,
        "measured_ns": measured,
        "predicted_part": predicted / step,
        "measured_part": measured / step,
        "error_points": (predicted - measured) / step * 100,
        "in_turn": in_turn,
        "ranks": ranks,
    }


def together_ns(run: Run) -> float:
    """Median untraced replay, as the rank has it that began last."""
    times = run.trace.timings[run.trace.timings["source"] == "untraced"]
    ranks = [group["duration_ns"].to_numpy() for _, group in times.groupby("rank", observed=True)]
    return float(np.median(np.min(ranks, axis=0)))


def one_rank(boundary: str, base_run: Run, fused_run: Run, rank: int) -> dict[str, Any]:
    """One rank of both runs, times in ns."""
    base, fused = analyse(base_run, rank=rank), analyse(fused_run, rank=rank)
    made, site, _ = prediction(boundary, base, fused)
    both = compare(base, fused)
    assert both.measured_saving_ns is not None and both.measured_interval_ns is not None
    low, high = made.interval_ns
    return {
        "rank": rank,
        "sites": made.sites,
        "step_ns": base.step_ns(),
        "launches": [base.forward.launches, fused.forward.launches],
        "fused_site_ns": site.time_ns,
        "wait_known": site.net_of_wait,
        "predicted_ns": made.saving_ns,
        "predicted_interval_ns": [low, high],
        "ceiling_ns": made.ceiling_ns,
        "untraced_saving_ns": both.measured_saving_ns,
        "untraced_interval_ns": list(both.measured_interval_ns),
    }


def prediction(boundary: str, base: Analysed, fused: Analysed) -> tuple[Estimate, Fused, bool]:
    """The estimate from the split rank and the fused site's time in the other, that time, and if wait is known."""
    wait = base.wait()
    site = fused_in(fused, boundary, net_of_wait=wait is not None)
    return (
        estimate(base.attribution, base.schedule(), boundary, "", site, base.untraced, wait=wait),
        site,
        wait is not None,
    )


def main() -> int:
    """Capture, analyse, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--models", default="glm-5.3-flash,deepseek-v3")
    parser.add_argument("--arms", default="triton,flashinfer")
    parser.add_argument("--profilers", default="cupti,nsys")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--processes", type=int, default=2, help="in which both are measured in turn; 0: not at all")
    parser.add_argument("--captures", type=int, default=3, help="of each in such a process")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=float, default=180, help="seconds of one capture")
    parser.add_argument("--seconds", type=float, default=3600, help="of all captures")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    captures = Captures(options)
    lists = (getattr(options, name).split(",") for name in ("models", "arms", "profilers", "parts"))
    for pair in pairs(*lists):
        runs = [captures.of(pair.model, pair.profiler, paths) for paths in (pair.base, pair.fused)]
        if runs[0] is not None and runs[1] is not None:
            try:
                captures.told["predicted"].append(compared(pair, runs[0], runs[1], captures.measured(pair)))
            except Exception as error:  # the captures that follow are worth more than this comparison
                captures.failed(f"{pair.fused} of {pair.model}", f"{type(error).__name__}: {error}")
        captures.write()
    captures.write()
    for line in captures.told["predicted"]:
        named = " ".join(line[key] for key in ("model", "profiler", "boundary", "arm"))
        parts = " ".join(f"{key} {line[key]:.4f}" for key in ("predicted_part", "measured_part", "error_points"))
        print(f"{named}: {parts}", flush=True)
    return 1 if captures.told["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
