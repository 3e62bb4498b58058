"""How far the measurement itself can be trusted: A/A comparisons, injected delays, and the knock-out of a known graph.

The graph is that of the sample `h200_ar_norm`: 45 layers of two GEMMs and one ar_norm site, built by its own make.py.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lab import add, lines

from fusionscope.analysis import ab
from fusionscope.profiler import measure
from fusionscope.profiler.capture.graph_copies import CudaGraphs

COMPARISONS, TRIALS, BLOCKS, REPLAYS = 200, 50, 8, 2
#: A spinning kernel in both arms: only its length differs.
SHORT_NS = 1000


def work(options: argparse.Namespace) -> int:
    """Everything that is not in OUT/noise.jsonl yet, until the time is up."""
    until = time.monotonic() + options.seconds
    file = options.out / "noise.jsonl"
    done = {row["what"] for row in lines(file)}
    if options.only:
        done |= {"knockout", "aa", "power"} - set(options.only.split(","))
    made = sample(options.make)
    weights = _weights(made)
    on = CudaGraphs()
    splits = [made.build("split", weights) for _ in range(4)]
    graphs = [graph for graph, _ in splits]
    fused = [made.build("fused", weights)[0] for _ in range(2)]
    if "knockout" not in done:
        add(file, {"what": "knockout", **knock_out(on, splits[0], fused, graphs[1])})
    if "aa" not in done:
        add(file, {"what": "aa", "gpu": torch.cuda.get_device_name(), "rows": against_itself(on, graphs, until)})
    if "power" not in done:
        mde = float(np.median([row["mde_ns"] for row in _rows(file, "aa")]))
        add(file, {"what": "power", "mde_ns": mde, "rows": injected(on, graphs[0], mde, until)})
    return 0


def sample(path: Path) -> Any:
    """The module that builds the sample's graph."""
    spec = importlib.util.spec_from_file_location("sample_make", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _weights(made: Any) -> tuple[Any, ...]:
    layers = range(made.LAYERS)
    return (
        [made.rand(made.HIDDEN, made.INNER) for _ in layers],
        [made.rand(made.INNER, made.HIDDEN) for _ in layers],
        [made.rand(made.TOKENS, made.HIDDEN) for _ in range(3)],
        torch.ones(made.HIDDEN, device="cuda", dtype=torch.bfloat16),
    )


def _rows(file: Path, what: str) -> list[dict[str, Any]]:
    return next(row["rows"] for row in lines(file) if row["what"] == what)


def knock_out(on: CudaGraphs, split: Any, fused: list[Any], again: Any) -> dict[str, Any]:
    """Both kernels of every site disabled, the norms alone, the all-reduces alone; and the real fusion."""
    graph, ranges = split
    cost = measure.disabled_node_ns(graphs=on)
    picks = {
        "both": [k for first, last in ranges for k in range(first, last)],
        "ar": [first for first, _ in ranges],
        "norm": [last - 1 for _, last in ranges],
    }
    found: dict[str, Any] = {"disabled_node_ns": cost, "gpu": torch.cuda.get_device_name()}
    for name, nodes in picks.items():
        out = measure.knockout(graph, nodes, blocks=20, disabled_ns=cost, graphs=on)
        found[name] = {"base_ns": out.base_ns, "without_ns": out.without_ns, "raw_ns": out.raw_ns,
                       "corrected_ns": out.corrected_ns, "nodes": out.nodes}  # fmt: skip
    table = measure.ab(graph, fused[0], again=again, candidate_again=fused[1], blocks=30, graphs=on)
    made = ab.compare(table)
    found["fused"] = made.document()
    late = measure.delay(graph, picks["norm"], 2.0, blocks=10, graphs=on)
    found["delay"] = {"criticality": late.criticality, "added_ns": late.added_ns, "step_ns": late.step_ns}
    return found


def against_itself(on: CudaGraphs, graphs: list[Any], until: float) -> list[dict[str, Any]]:
    """Comparisons of one program with itself, captured four times; who plays which arm is drawn anew."""
    chooser = random.Random(1)
    found = []
    for trial in range(COMPARISONS):
        if time.monotonic() > until:
            break
        base, candidate, again, other = chooser.sample(graphs, 4)
        begin = time.monotonic()
        table = measure.ab(
            base, candidate, again=again, candidate_again=other, blocks=BLOCKS, replays=REPLAYS, seed=trial, graphs=on
        )
        found.append(_row(ab.compare(table), time.monotonic() - begin))
    return found


def injected(on: CudaGraphs, graph: Any, mde: float, until: float) -> list[dict[str, Any]]:
    """The same graph with a spinning kernel in the middle of it, longer by one and two MDE in the candidate."""
    cycle = on.ns_per_cycle()
    middle = [len(on.nodes(graph)) // 2]
    short = round(SHORT_NS / cycle)
    base, again = (on.delayed(graph, middle, short) for _ in range(2))
    found = []
    for times in (1, 2):
        long = short + round(times * mde / cycle)
        arms = {measure.BASE: base, measure.CANDIDATE: on.delayed(graph, middle, long), measure.AGAIN: again}
        timers = {name: (lambda launch=launch: on.timed(launch)) for name, launch in arms.items()}
        for trial in range(TRIALS):
            if time.monotonic() > until:
                break
            begin = time.monotonic()
            rows = measure.in_blocks(timers, BLOCKS, REPLAYS, seed=10_000 * times + trial)
            row = _row(ab.compare(measure.as_table(rows)), time.monotonic() - begin)
            found.append({**row, "times": times, "injected_ns": (long - short) * cycle})
    return found


def _row(made: ab.Comparison, seconds: float) -> dict[str, Any]:
    return {
        "ns": made.saving.value_ns,
        "interval_ns": list(made.saving.interval_ns),
        "mde_ns": made.mde_ns,
        "base_ns": made.base_ns,
        "class": made.verdict.class_,
        "seconds": round(seconds, 3),
    }
