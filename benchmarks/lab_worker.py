"""One process of the lab set: traces groups of cases, or predicts and measures them."""

from __future__ import annotations

import argparse
import dataclasses
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lab_cases
import numpy as np
import torch
from lab import add, lines
from lab_predict import Seen, predictions

from fusionscope.analysis.ab import block_values
from fusionscope.fusion_runtime.decode import graph as graphs
from fusionscope.profiler import measure
from fusionscope.profiler.capture import cupti
from fusionscope.profiler.capture.clocks import Clocks
from fusionscope.profiler.capture.graph_copies import CudaGraphs

TRACED, WARM = 10, 1
#: Blocks and replays in a turn of the measurement, and of the split step's own times before it.
BLOCKS, REPLAYS = 12, 2
BASELINE = (8, 6)
#: Captures of each arm in a process, fewer for a model: two captures of one program can differ by 2 % of the step.
CAPTURES, MODEL_CAPTURES = 3, 2


@dataclasses.dataclass
class Candidate:
    """A case of a group: how its fused graph is built, and its sites in the split graph."""

    case: str
    boundary: str
    held_out: bool
    fused: Callable[[], lab_cases.Built]
    facts: dict[str, Any]
    #: Sites in the split graph and in the fused one.
    sites: Callable[[lab_cases.Built, bool], list[tuple[int, int]]]
    moved: float = 0.0
    bench: lab_cases.Chain | None = None
    chain: lab_cases.Chain | None = None


@dataclasses.dataclass
class Group:
    """Cases that share one split graph."""

    name: str
    split: Callable[[], lab_cases.Built]
    candidates: list[Candidate]


def chain_group(case: lab_cases.Case, pool: lab_cases.Weights) -> Group:
    """A chain and its one candidate."""
    chain, bench = lab_cases.Chain(case, pool), lab_cases.Chain(case, pool, bench=True)
    facts = {**dataclasses.asdict(case), "kind": "chain"}
    one = Candidate(
        case.id, case.boundary, case.held_out, lambda: chain.build(True), facts, lambda built, fused: built.sites,
        moved(case), bench, chain,
    )  # fmt: skip
    return Group(case.id, lambda: chain.build(False), [one])


def moved(case: lab_cases.Case) -> float:
    """Bytes that the fused boundary reads and writes at a site, at least."""
    shape = lab_cases.SHAPES[case.shape]
    row, inner = 2 * shape.hidden, 2 * shape.inner
    by = {
        "add_norm": 4 * row,
        "norm_fp8": 3.5 * row,
        "ar_norm": (lab_cases.TP + 4) * row,
        "pull_norm": (lab_cases.TP + 3) * row,
        "finalize_add": (lab_cases.TOP_K + 2) * row,
        "moe_finalize": (lab_cases.TOP_K + lab_cases.TP + 10) * row,
        "mhc_post": (lab_cases.TP + 10) * row,
        "silu_mul": 3 * inner,
        "silu_fp8": 2.5 * inner,
    }
    return case.batch * by[case.boundary]


#: Candidates of the built-in model: paths, and the boundary (and subtype) that they fuse.
MODEL_PATHS = {
    "mhc_post": ("mhc_post=triton", "mhc_post", ""),
    "attn_exit": ("mhc_post:attn_exit=triton", "mhc_post", "attn_exit"),
    "ffn_exit": ("mhc_post:ffn_exit=triton", "mhc_post", "ffn_exit"),
    "moe_finalize": ("moe_finalize=triton", "moe_finalize", ""),
    "ar_norm": ("ar_norm=triton", "ar_norm", ""),
}


def model_group(name: str, layers: int, batch: int, held_out: bool = True) -> Group:
    """The built-in forward: weights are made once, and captured with each choice of paths."""
    from fusionscope.fusion_runtime.comm.loopback import Loopback
    from fusionscope.fusion_runtime.context import PathChoice
    from fusionscope.fusion_runtime.decode.model import DecodeModel, make_context
    from fusionscope.fusion_runtime.decode.spec import MODELS

    spec = MODELS[name].truncated(layers) if layers else MODELS[name]
    loop = Loopback(lab_cases.TP, "cuda")
    model = DecodeModel(spec, loop, batch, 8192, "cuda", make_context(loop, "cuda", PathChoice()))
    there = {site[0] for site in spec.boundary_map()}
    row = 2 * spec.hidden * batch

    def captured(paths: str) -> lab_cases.Built:
        model.ctx = make_context(loop, "cuda", PathChoice.parse(paths))
        made = graphs.capture(model)
        for _ in range(3):
            made.replay()
        torch.cuda.synchronize()
        return lab_cases.Built(made.graph, made.site_rows, [made])  # type: ignore[arg-type]

    def candidate(short: str, paths: str, boundary: str, subtype: str) -> Candidate:
        def sites(built: lab_cases.Built, fused: bool) -> list[tuple[int, int]]:
            rows: list[Any] = built.sites
            mine = [r for r in rows if r.boundary == boundary and (not subtype or r.subtype == subtype)]
            return [(r.first_node, r.last_node) for r in mine]

        title = f"{name}.l{spec.layers}.{short}.b{batch}"
        facts = {"kind": "model", "model": name, "layers": spec.layers, "batch": batch, "paths": paths,
                 "boundary": short, "shape": name, "streams": 1, "pdl": False}  # fmt: skip
        bytes_moved = row * {"mhc_post": 14, "moe_finalize": 22, "ar_norm": 8}[boundary]
        return Candidate(title, boundary, held_out, lambda: captured(paths), facts, sites, bytes_moved)

    chosen = [candidate(short, *rest) for short, rest in MODEL_PATHS.items() if rest[1] in there]
    return Group(f"{name}.l{spec.layers}.b{batch}", lambda: captured(""), chosen)


def groups(options: argparse.Namespace) -> list[tuple[str, Callable[[lab_cases.Weights], Group]]]:
    """Every group by name, in the order in which it runs; building happens when its turn comes."""
    from fusionscope.fusion_runtime.decode.spec import MODELS

    listed: list[tuple[str, bool, Callable[[lab_cases.Weights], Group]]] = [
        (case.id, case.held_out, lambda pool, c=case: chain_group(c, pool)) for case in lab_cases.chains()
    ]
    shallow = {"glm-5.3-flash": 12, "deepseek-v3": 6}

    def models(*batches: int) -> list[tuple[str, bool, Callable[[lab_cases.Weights], Group]]]:
        chosen = [(m, layers, b) for b in batches for m, layers in shallow.items() if m in MODELS]
        return [(f"{m}.l{n}.b{b}", True, lambda pool, a=(m, n, b): model_group(*a)) for m, n, b in chosen]

    for m, n in shallow.items():
        if m in MODELS:
            listed.append((f"{m}.l{n}.b8", False, lambda pool, a=(m, n, 8, False): model_group(*a)))
    # What comes first is done if the time ends early, so that kinds are mixed.
    late = [entry for entry in listed if entry[1] and entry[0].split(".b")[1].split(".")[0] in ("1", "16")]
    early = [entry for entry in listed if entry not in late]
    tuning, held_out = ([entry for entry in early if entry[1] == kind] for kind in (False, True))
    found = tuning + models(4) + held_out + late + models(64, 16, 1)
    found.append(("glm-5.3-flash.l45.b4", True, lambda pool: model_group("glm-5.3-flash", 0, 4)))
    words = [w for w in options.only.split(",") if w]
    return [
        (name, make)
        for name, held_out, make in found
        if (options.set == "all" or held_out == (options.set == "held-out"))
        and (not words or any(w in name for w in words))
    ]


def work(options: argparse.Namespace) -> int:
    """Run one phase over the groups that are not done yet, until the time is up."""
    until = time.monotonic() + options.seconds
    file = options.out / (f"{options.phase}{options.process}.jsonl")
    done = {row["group"] for row in lines(file)}
    if options.phase == "build":
        return build_only(options, until)
    on, pool, clocks = CudaGraphs(), lab_cases.Weights(), Clocks()
    (options.out / "traces").mkdir(exist_ok=True)
    for name, make in groups(options):
        if name in done:
            continue
        if time.monotonic() > until:
            print(f"{options.phase}: out of time before {name}", flush=True)
            break
        begin = time.monotonic()
        try:
            torch.manual_seed(7)
            if ".l" in name:  # a model needs the memory that the chains' weights take
                pool.clear()
                torch.cuda.empty_cache()
            group = make(pool)
            rows = trace(group, options.out) if options.phase == "trace" else evaluate(group, options, on, clocks)
            for row in rows:
                row["seconds"] = round(time.monotonic() - begin, 2)
                add(file, {"group": name, **row})
        except Exception as error:  # one case must not end the others
            traceback.print_exc()
            add(file, {"group": name, "failed": f"{type(error).__name__}: {str(error)[:300]}"})
        print(f"{options.phase}{options.process} {name} {time.monotonic() - begin:.1f} s", flush=True)
        group = None
        on.close()
        torch.cuda.synchronize()
        if ".l" in name:
            import gc

            gc.collect()
            torch.cuda.empty_cache()
    return 0


def build_only(options: argparse.Namespace, until: float) -> int:
    """Build every fourth group and let it go: fills the cache of compiled kernels, measures nothing."""
    pool = lab_cases.Weights()
    for name, make in groups(options)[options.process :: 4]:
        if time.monotonic() > until:
            break
        begin = time.monotonic()
        try:
            if ".l" in name:
                pool.clear()
                torch.cuda.empty_cache()
            group = make(pool)
            group.split()
            for one in group.candidates:
                one.fused()
                if one.bench is not None:
                    one.bench.build(False)
                    one.bench.build(True)
        except Exception:  # told of again, and recorded, when the case is traced
            traceback.print_exc()
        group = None
        print(f"built {name} {time.monotonic() - begin:.1f} s", flush=True)
    return 0


def trace(group: Group, out: Path) -> list[dict[str, Any]]:
    """Trace the split graph, each fused one and the benches; leaves one file a case."""
    split = group.split()
    built = [(split, "split")]
    fused = [c.fused() for c in group.candidates]
    built += [(b, "fused") for b in fused]
    benches = [(c.bench.build(False), c.bench.build(True)) if c.bench else None for c in group.candidates]
    built += [(b, "bench") for pair in benches if pair for b in pair]
    taken = [recorded(b.graph) for b, _ in built]
    nodes, edges = edges_of(split.graph)
    rows = []
    for place, one in enumerate(group.candidates):
        start, duration, frame = taken[0]
        by_site = site_times(taken[1 + place], one.sites(fused[place], True))
        bench = None
        if benches[place] is not None:
            at = 1 + len(fused) + 2 * place
            pair = benches[place]
            assert pair is not None
            whole = [site_times(taken[at + k], pair[k].sites) for k in (0, 1)]
            bench = (float(np.median(whole[1])), float(np.median(whole[0])))
        seen = Seen(
            boundary=one.boundary, start=start, duration=duration, nodes=frame["node"], streams=frame["stream"],
            names=frame["name"], edges=edges, sites=one.sites(split, False), candidate=float(np.median(by_site)),
            in_context=bench, isolated=None, moved=one.moved, untraced=[],
        )  # fmt: skip
        seen.save(out / "traces" / f"{one.case}.npz")
        span = float(np.median((start + duration).max(axis=1) - start.min(axis=1)))
        rows.append({"case": one.case, "nodes": nodes, "launches": int(start.shape[1]), "span_ns": span,
                     "fused_launches": int(taken[1 + place][0].shape[1]),
                     "programmatic": sum(p for _, _, p in edges)})  # fmt: skip
    return rows


def recorded(graph: Any) -> tuple[Any, Any, dict[str, list[Any]]]:
    """[R, n] start and duration of a graph's launches under CUPTI, and what they are, by node."""
    torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        with cupti.recording(Path(folder), 0):
            for _ in range(WARM + TRACED):
                graph.replay()
                torch.cuda.synchronize()
        kernels = cupti.read(Path(folder), 0).kernels
    kernels = kernels[(kernels["kind"] == "kernel") & (kernels["replay"] >= WARM)]
    ordered = kernels.sort_values(["replay", "node"], kind="stable")
    counts = ordered.groupby("replay").size()
    if len(counts) != TRACED or counts.nunique() != 1:
        raise RuntimeError(f"{len(counts)} replays of {sorted(set(counts))} launches were recorded")
    n = int(counts.iloc[0])
    first = ordered.iloc[:n]
    what = {
        "node": first["node"].astype(int).tolist(),
        "stream": first["stream"].astype(int).tolist(),
        "name": first["name"].astype(str).tolist(),
    }
    shape = (TRACED, n)
    return ordered["start_ns"].to_numpy().reshape(shape), ordered["duration_ns"].to_numpy().reshape(shape), what


def site_times(taken: tuple[Any, Any, dict[str, list[Any]]], sites: list[tuple[int, int]]) -> Any:
    """[sites, R] sum of the durations of each site's launches."""
    _, duration, what = taken
    node = np.array(what["node"])
    return np.stack([duration[:, (node >= first) & (node < last)].sum(axis=1) for first, last in sites])


def edges_of(graph: Any) -> tuple[int, list[tuple[int, int, bool]]]:
    """Number of nodes, and edges by ordinal."""
    ordinals, _ = graphs._nodes(graph.raw_cuda_graph())
    return len(ordinals), graphs._edges(graph.raw_cuda_graph(), ordinals)[0]


def evaluate(group: Group, options: argparse.Namespace, on: CudaGraphs, clocks: Clocks) -> list[dict[str, Any]]:
    """Time the split step, predict every candidate, and only then measure them."""
    missing = [c.case for c in group.candidates if not (options.out / "traces" / f"{c.case}.npz").is_file()]
    if missing:
        raise RuntimeError(f"not traced: {', '.join(missing)}")
    captures = MODEL_CAPTURES if ".l" in group.name else CAPTURES
    splits = [group.split() for _ in range(captures)]
    if options.process == 0:
        for one in group.candidates:
            predict(one, splits[0], options.out, on)
    kept = list(splits)
    arms: dict[str, Callable[[], int]] = {f"split {k}": timer(on, built) for k, built in enumerate(splits)}
    for one in group.candidates:
        for k in range(captures):
            kept.append(one.fused())
            arms[f"{one.case} {k}"] = timer(on, kept[-1])
    before = clocks.read()
    step = arms["split 0"]()
    blocks = BLOCKS if step * len(arms) < 25_000_000 else BLOCKS // 2
    rows = measure.in_blocks(arms, blocks, REPLAYS, seed=1000 * options.process + len(arms))
    after = clocks.read()
    values = {arm: block_values(measure.as_table(rows), arm).round().astype(int).tolist() for arm in arms}
    found = []
    for one in group.candidates:
        found.append({
            "case": one.case, "held_out": one.held_out, "facts": one.facts, "process": os.getpid(),
            "split": [values[f"split {k}"] for k in range(captures)],
            "fused": [values[f"{one.case} {k}"] for k in range(captures)],
            "clocks": [before.sm_mhz, after.sm_mhz, before.reasons | after.reasons],
            "gpu": torch.cuda.get_device_name(),
        })  # fmt: skip
    return found


def predict(one: Candidate, split: lab_cases.Built, out: Path, on: CudaGraphs) -> None:
    """Add what an untraced process knows (the split step, the kernels alone), and write the prediction down."""
    path = out / "traces" / f"{one.case}.npz"
    seen = Seen.load(path)
    blocks, replays = BASELINE
    base = timer(on, split)
    seen.untraced = []
    for _ in range(blocks):
        base()
        seen.untraced.append([base() for _ in range(replays)])
    if one.chain is not None:
        count = 48
        alone = [one.chain.alone(fused, count) for fused in (True, False)]
        times = [[timer(on, b)() for _ in range(15)] for b in alone]
        seen.isolated = (float(np.median(times[0])) / count, float(np.median(times[1])) / count)
    seen.save(path)
    document = predictions(seen)
    add(out / "predicted.jsonl", {"case": one.case, "held_out": one.held_out, "facts": one.facts, **document})


def timer(on: CudaGraphs, built: lab_cases.Built) -> Callable[[], int]:
    """A replay of a graph, timed."""
    launch = on.launch(built.graph)
    return lambda: on.timed(launch)
