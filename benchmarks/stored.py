"""Captures in a store, found by what they captured, and the times that the scripts beside this file write down."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fusionscope.analysis.analysed import Analysed, analyse
from fusionscope.profiler.store import Run, Store

MODEL, TP = "glm-5.3-flash", 4
#: What another machine needs to judge the numbers; nothing that names this one.
MACHINE = ("gpu", "driver", "cuda", "torch", "triton")
METHOD = (
    "Rank 0 of the model's decode step as one CUDA graph on one GPU, with the peers' all-reduce data in local buffers "
    "(emulated ranks: no link time, no waiting); launches, kernel time and span are medians over the traced replays "
    "after the first, untraced is the median of 80 replays (8 blocks of 10) of the same graph without a "
    "profiler, mde is the smallest difference that those blocks show with 80 % power at 5 %. All times in ns."
)


class Missing(Exception):
    """A capture that a script needs is in none of the stores; the text says how to make it."""


def open_stores(folders: Sequence[Path]) -> list[Run]:
    """Every run of the stores that covers all layers of the model, oldest first."""
    runs = []
    for folder in folders:
        for listed in Store(folder).list():
            info = listed.info
            # The store lists the examples of the package as well.
            if listed.path.parent != folder or info is None or info.model != MODEL or info.tp != TP:
                continue
            if "truncated layers" not in info.labels:
                runs.append(Store(folder).load(str(listed.path)))
    return sorted(runs, key=lambda run: run.info.created)


def find(runs: Iterable[Run], profiler: str, batch: int, fused: Sequence[str]) -> Run:
    """The newest run of that profiler and batch in which `fused` names the boundaries on the Triton path.

    Raises Missing, with the command that makes it.
    """
    for run in reversed(list(runs)):
        info = run.info
        on_triton = sorted(kind for kind, path in info.paths.items() if path == "triton")
        if (info.profiler, info.batch, on_triton) == (profiler, batch, sorted(fused)):
            return run
    paths = ",".join(f"{kind}=triton" for kind in fused) or "mhc_post=split"
    raise Missing(
        f"No capture of {MODEL} at batch {batch} under {profiler} with {paths}. Make it: fusionscope capture "
        f"--model {MODEL} --tp {TP} --batch {batch} --profiler {profiler} --paths {paths} --store FOLDER"
    )


def times(found: Analysed) -> dict[str, Any]:
    """Launches and times of one forward, ns."""
    forward, untraced = found.forward, found.untraced
    assert untraced is not None, "a capture always times replays without a profiler"
    return {
        "launches": forward.launches,
        "traced_replays": forward.replays,
        "traced_kernel_time_ns": float(np.median(forward.kernel_time)),
        "traced_span_ns": float(np.median(forward.span)),
        "untraced_ns": untraced.median_ns,
        "untraced_replays": int((found.run.trace.timings["source"] == untraced.source).sum()),
        "mde_ns": None if untraced.mde_ns is None else round(untraced.mde_ns, 1),
    }


def analysed(run: Run, rung: int | None = None) -> Analysed:
    """The run, analysed by one rung or by the best of each kind."""
    return analyse(run, rung=rung)


def head(runs: Sequence[Run]) -> dict[str, Any]:
    """What holds for all runs: machine, versions, labels, method. Raises Missing where they are of two machines."""
    machines = [{key: run.info.machine.get(key, "") for key in MACHINE} for run in runs]
    if any(machine != machines[0] for machine in machines):
        raise Missing(f"The captures are of several machines or versions ({machines}): make all of them on one.")
    first = runs[0].info
    return {
        "model": first.model,
        "tp": first.tp,
        "context": first.context,
        "layers": first.layers,
        "machine": machines[0],
        "labels": sorted({label for run in runs for label in run.info.labels}),
        "method": METHOD,
    }


def write(path: Path, document: dict[str, Any]) -> None:
    """The document as JSON."""
    path.write_text(json.dumps(document, indent=2) + "\n")
    print(f"wrote {path}")
