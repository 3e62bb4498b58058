"""One process of the lab set: traces groups of cases, or predicts and measures them."""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lab_cases
import numpy as np
import torch
from lab import add
from lab_groups import Candidate, Group, groups
from lab_predict import Seen, predictions
from numpy.typing import NDArray

from fusionscope.analysis.ab import block_values
from fusionscope.fusion_runtime.decode import graph as graphs
from fusionscope.profiler import measure
from fusionscope.profiler.capture import cupti
from fusionscope.profiler.capture.clocks import Clocks
from fusionscope.profiler.capture.graph_copies import CudaGraphs
from fusionscope.profiler.capture.placement import padding

#: Turns of every graph while one recording lasts, and what a turn replays: once to warm up, and so often to be kept.
ROUNDS, LEAD, KEPT = 2, 1, 2
#: Blocks and replays in a turn of the measurement, and of each split capture's own times before it.
BLOCKS, REPLAYS = 12, 2
BASELINE = (4, 6)
#: Captures of each arm, traced and measured: two captures of one program can differ by 2 % of the step. The second set
#: had 6, 3 and 2, the third 10, 6 and 4; at 10 a chain takes 3.1 s.
CAPTURES, MODEL_CAPTURES, WHOLE_CAPTURES = 12, 6, 4
#: A step that takes longer in all its arms is measured in half as many blocks.
LONG_NS = 40_000_000
Captures = list[lab_cases.Built]


def work(options: argparse.Namespace) -> int:
    """Do the groups whose names arrive on standard input, and answer each with a line; or build a share of them."""
    made = dict(groups(options.set))
    if options.phase == "build":
        return build_only(list(made), made, options)
    on, pool, clocks = CudaGraphs(), lab_cases.Weights(), Clocks()
    (options.out / "traces").mkdir(parents=True, exist_ok=True)
    file = options.out / f"{options.phase}0.jsonl"
    print("ready", flush=True)
    for line in sys.stdin:
        name = line.strip()
        begin = time.monotonic()
        group: Group | None = None
        try:
            torch.manual_seed(7)
            if whole(name):  # it needs the memory that the chains' weights take
                pool.clear()
                release()
            group = made[name](pool)
            rows = trace(group, options.out) if options.phase == "trace" else evaluate(group, options, on, clocks)
            for row in rows:
                row["seconds"] = round(time.monotonic() - begin, 2)
                add(file, {"group": name, **row})
        except Exception as error:  # one case must not end the others
            traceback.print_exc()
            add(file, {"group": name, "failed": f"{type(error).__name__}: {str(error)[:300]}"})
        group = None
        on.close()
        if is_model(name):
            release()
        print(f"{options.phase} {name} {time.monotonic() - begin:.1f} s", flush=True)
        print(f"done {name}", flush=True)
    return 0


def is_model(name: str) -> bool:
    """Whether a group is a built-in model and not a chain."""
    return ".l" in name


def whole(name: str) -> bool:
    """Whether a group is the whole model that is measured, and not its first layers."""
    return ".l45." in name


def release() -> None:
    """Give memory back that nothing holds any more."""
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()


def build_only(names: list[str], made: dict[str, Any], options: argparse.Namespace) -> int:
    """Build the groups whose kernels fall to this process and let them go: fills the cache of compiled kernels."""
    until = time.monotonic() + options.seconds
    share, of = (int(part) for part in options.share.split("/"))
    kinds: dict[str, list[str]] = {}
    for name in names:
        if whole(name):  # the same kernels as its first layers
            continue
        kinds.setdefault(kernels_of(name), []).append(name)
    pool = lab_cases.Weights()
    for name in [name for mine in list(kinds.values())[share::of] for name in mine]:
        if time.monotonic() > until:
            break
        begin = time.monotonic()
        try:
            group = made[name](pool)
            group.split(())
            for one in group.candidates:
                one.fused(())
        except Exception:  # told of again, and recorded, when the case is traced
            traceback.print_exc()
        group = None
        release()
        print(f"built {name} {time.monotonic() - begin:.1f} s", flush=True)
    return 0


def kernels_of(name: str) -> str:
    """What decides which kernels a group compiles: its model, or its boundary and whether it launches early."""
    parts = name.split(".")
    return parts[0] + parts[1] if is_model(name) else f"{parts[1]} {name.endswith('pdl')}"


def captured(phase: str, group: Group, candidates: Sequence[Candidate]) -> tuple[Captures, list[Captures]]:
    """Captures of the split step, and of each candidate, taken in turn; each phase lays their buffers elsewhere."""
    count = CAPTURES
    if is_model(group.name):
        count = WHOLE_CAPTURES if whole(group.name) else MODEL_CAPTURES
    splits: Captures = []
    fused: list[Captures] = [[] for _ in candidates]
    for k in range(count):
        splits.append(group.split(padding(phase, group.name, k)))
        for one, mine in zip(candidates, fused, strict=True):
            mine.append(one.fused(padding(phase, one.case, k)))
    return splits, fused


def trace(group: Group, out: Path) -> list[dict[str, Any]]:
    """Trace every capture and the benches in one recording; leaves one file a case."""
    splits, fused = captured("trace", group, group.candidates)
    benches = [[one.bench.build(False), one.bench.build(True)] if one.bench else [] for one in group.candidates]
    everything = [splits, *fused, *benches]
    taken = iter(recorded([built.graph for builds in everything for built in builds]))
    split, *rest = [[next(taken) for _ in builds] for builds in everything]
    by_case, by_bench = rest[: len(fused)], rest[len(fused) :]
    nodes, edges = edges_of(splits[0].graph)
    rows: list[dict[str, Any]] = []
    for one, builds, found, pair, timed in zip(group.candidates, fused, by_case, benches, by_bench, strict=True):
        if len(found[0].node) >= len(split[0].node):
            rows.append({"failed": f"{one.case} did not fire: {len(found[0].node)} launches"})
            continue
        sites = one.sites(builds[0])
        fused_ns = [site_ns(t, one.sites(b)) for t, b in zip(found, builds, strict=True)]
        bench = [site_ns(t, b.sites) for t, b in zip(timed, pair, strict=True)]
        whole, candidate = joined(split), joined(found)
        seen = Seen(
            boundary=one.boundary, start=whole.start, duration=whole.duration, nodes=whole.node, streams=whole.stream,
            names=whole.name, edges=edges, sites=one.sites(splits[0]), candidate=float(np.mean(fused_ns)),
            in_context=(bench[1], bench[0]) if bench else None, isolated=None, moved=one.moved, untraced=[],
            spans=[t.span_ns for t in split], fused_spans=[t.span_ns for t in found],
            fused_start=candidate.start, fused_duration=candidate.duration, fused_nodes=candidate.node,
            fused_sites=sites, fused_early=begins_early(edges_of(builds[0].graph)[1], sites),
        )  # fmt: skip
        seen.save(out / "traces" / f"{one.case}.npz")
        rows.append({"case": one.case, "nodes": nodes, "launches": len(whole.node), "spans_ns": seen.spans,
                     "fused_launches": len(candidate.node), "fused_spans_ns": seen.fused_spans, "fused_ns": fused_ns,
                     "programmatic": sum(p for _, _, p in edges)})  # fmt: skip
    return rows


@dataclass
class Traced:
    """[R, n] start (after the first of its replay) and duration of a graph's launches, and what they are, by node."""

    start: NDArray[np.int64]
    duration: NDArray[np.int64]
    node: list[int]
    stream: list[int]
    name: list[str]

    @property
    def span_ns(self) -> float:
        """Median over the replays."""
        return float(np.median((self.start + self.duration).max(axis=1)))


def joined(captures: Sequence[Traced]) -> Traced:
    """The replays of all captures that have the launches of the first."""
    first = captures[0]
    same = [t for t in captures if t.node == first.node]
    start, duration = (np.concatenate([getattr(t, name) for t in same]) for name in ("start", "duration"))
    return Traced(start, duration, first.node, first.stream, first.name)


def recorded(captures: Sequence[Any]) -> list[Traced]:
    """Each graph's launches under CUPTI, all graphs in turn within one recording, so that drift meets all alike."""
    chooser, order = random.Random(len(captures)), []
    for _ in range(ROUNDS):
        turn = list(range(len(captures)))
        chooser.shuffle(turn)
        order += [(place, kept) for place in turn for kept in [False] * LEAD + [True] * KEPT]
    torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        with cupti.recording(Path(folder), 0):
            for place, _ in order:
                captures[place].replay()
                torch.cuda.synchronize()
        kernels = cupti.read(Path(folder), 0).kernels
    kernels = kernels[(kernels["kind"] == "kernel") & (kernels["replay"] >= 0)]
    by_replay = dict(list(kernels.sort_values("node", kind="stable").groupby("replay")))
    if len(by_replay) != len(order):
        raise RuntimeError(f"{len(by_replay)} of {len(order)} replays were recorded")
    found = []
    for place in range(len(captures)):
        mine = [by_replay[replay] for replay, (which, kept) in enumerate(order) if which == place and kept]
        if len({len(part) for part in mine}) != 1:
            raise RuntimeError(f"replays of one graph with {sorted({len(part) for part in mine})} launches")
        start = np.stack([part["start_ns"].to_numpy() for part in mine])
        found.append(
            Traced(
                start - start.min(axis=1)[:, None],
                np.stack([part["duration_ns"].to_numpy() for part in mine]),
                mine[0]["node"].astype(int).tolist(),
                mine[0]["stream"].astype(int).tolist(),
                mine[0]["name"].astype(str).tolist(),
            )
        )
    return found


def site_ns(taken: Traced, sites: list[tuple[int, int]]) -> float:
    """Time of a site: the mean over the sites, as a step is their sum, and its median over the replays."""
    node = np.array(taken.node)
    each = [taken.duration[:, (node >= first) & (node < last)].sum(axis=1) for first, last in sites]
    return float(np.median(np.mean(each, axis=0)))


def begins_early(edges: list[tuple[int, int, bool]], sites: list[tuple[int, int]]) -> bool:
    """Whether most sites begin with a node that need not wait for the end of another."""
    early = {target for _, target, programmatic in edges if programmatic}
    return sum(first in early for first, _ in sites) * 2 > len(sites)


def edges_of(graph: Any) -> tuple[int, list[tuple[int, int, bool]]]:
    """Number of nodes, and edges by ordinal."""
    ordinals, _ = graphs._nodes(graph.raw_cuda_graph())
    return len(ordinals), graphs._edges(graph.raw_cuda_graph(), ordinals)[0]


def evaluate(group: Group, options: argparse.Namespace, on: CudaGraphs, clocks: Clocks) -> list[dict[str, Any]]:
    """Time the split step, predict every candidate, and only then measure them."""
    traced = [c for c in group.candidates if (options.out / "traces" / f"{c.case}.npz").is_file()]
    if not traced:
        raise RuntimeError("not traced")
    splits, fused = captured("measure", group, traced)
    base = baseline([timer(on, built) for built in splits])
    for one in traced:
        predict(one, base, options.out, on)
    arms = {f"split {k}": timer(on, built) for k, built in enumerate(splits)}
    for one, mine in zip(traced, fused, strict=True):
        arms |= {f"{one.case} {k}": timer(on, built) for k, built in enumerate(mine)}
    before = clocks.read()
    blocks = BLOCKS if arms["split 0"]() * len(arms) < LONG_NS else BLOCKS // 2
    rows = measure.in_blocks(arms, blocks, REPLAYS, seed=len(arms))
    after = clocks.read()
    values = {arm: block_values(measure.as_table(rows), arm).round().astype(int).tolist() for arm in arms}
    found = []
    for one in traced:
        found.append({
            "case": one.case, "held_out": one.held_out, "facts": one.facts, "process": os.getpid(),
            "split": [values[f"split {k}"] for k in range(len(splits))],
            "fused": [values[f"{one.case} {k}"] for k in range(len(splits))],
            "clocks": [before.sm_mhz, after.sm_mhz, before.reasons | after.reasons],
            "gpu": torch.cuda.get_device_name(),
        })  # fmt: skip
    return found


def baseline(arms: Sequence[Callable[[], int]]) -> list[list[int]]:
    """Times of the split step by block, every capture in turn."""
    found = []
    for _ in range(BASELINE[0]):
        for arm in arms:
            arm()
            found.append([arm() for _ in range(BASELINE[1])])
    return found


def predict(one: Candidate, base: list[list[int]], out: Path, on: CudaGraphs) -> None:
    """Add what an untraced process knows (the split step, the kernels alone), and write the prediction down."""
    path = out / "traces" / f"{one.case}.npz"
    seen = Seen.load(path)
    seen.untraced = base
    if one.chain is not None:
        count = 48
        alone = [one.chain.alone(fused, count) for fused in (True, False)]
        times = [[timer(on, b)() for _ in range(15)] for b in alone]
        seen.isolated = (float(np.median(times[0])) / count, float(np.median(times[1])) / count)
    seen.save(path)
    document = predictions(seen)
    facts = {"case": one.case, "held_out": one.held_out, "facts": one.facts}
    add(out / "predicted.jsonl", {**facts, "predicted_at": time.time(), **document})


def timer(on: CudaGraphs, built: lab_cases.Built) -> Callable[[], int]:
    """A replay of a graph, timed."""
    launch = on.launch(built.graph)
    return lambda: on.timed(launch)
