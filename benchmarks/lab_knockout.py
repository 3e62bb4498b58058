"""What a knock-out does to the data of a step: experts that the routers choose, and times on an idle GPU and covered.

    python benchmarks/lab_knockout.py OUT.jsonl --layers 4 --blocks 8

Captures the built-in GLM-5.3-Flash as `fusionscope knockout` does, once with memory that its tensors share and once
with memory of their own (`keep`), disables the nodes of each boundary in a copy, and reads after a replay of each copy
how many experts the routers chose. Needs a CUDA GPU and cuda-bindings.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lab import add

from fusionscope.fusion_runtime.decode import cuda_ops
from fusionscope.profiler import measure
from fusionscope.profiler.capture import forward, placement
from fusionscope.profiler.capture.arms_plan import make_knockout_plan
from fusionscope.profiler.capture.graph_copies import CudaGraphs

BOUNDARY, BATCH, TP, REPLAYS = "mhc_post", 4, 4, 3


def main() -> int:
    """One line for each capture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=0, help="the first ones only; 0: all")
    parser.add_argument("--blocks", type=int, default=8)
    options = parser.parse_args()
    for keep in (False, True):
        for turn in range(2):
            add(options.out, captured(options.layers, options.blocks, keep, turn))
            torch.cuda.empty_cache()
    return 0


def captured(layers: int, blocks: int, keep: bool, turn: int) -> dict[str, Any]:
    """Times of the base, of a copy of it and of the copies without a boundary's nodes, ns, with the experts of each."""
    plan, _ = make_knockout_plan("glm-5.3-flash", TP, [BOUNDARY], BATCH, None, layers or None, "")
    chosen: list[Any] = []
    plain = cuda_ops.router

    def router(*args: Any, **more: Any) -> Any:
        made = plain(*args, **more)
        if torch.cuda.is_current_stream_capturing():
            chosen.append(made[0])
        return made

    with forward.group_of(plan.base) as group:
        cuda_ops.router = router
        try:
            first: Any = forward.build(plan.base, group, placement.padding(0, turn, 0), keep)
        finally:
            cuda_ops.router = plain
        on, sites = CudaGraphs(), first.sites()
        names = {s.boundary for s in sites} | {f"{s.boundary}:{s.subtype}" for s in sites if s.boundary == BOUNDARY}
        nodes = {name: measure.nodes_of(sites, name) for name in sorted(names)}
        launches = {"base": first.captured.replay, "copy": on.without(first.captured.graph, [])}
        launches |= {name: on.without(first.captured.graph, mine) for name, mine in nodes.items()}
        experts = {name: _experts(launch, first.captured.replay, chosen) for name, launch in launches.items()}
        cost = measure.disabled_node_ns(graphs=on)
        timers: dict[str, Callable[[], int]] = {}
        for name, launch in launches.items():
            timers[f"idle {name}"] = lambda launch=launch: on.timed(launch)  # type: ignore[misc]
            timers[f"covered {name}"] = measure.covered(on, launch)
        rows = measure.in_blocks(timers, blocks, REPLAYS, seed=turn)
        found = {arm: statistics.median(ns for _, name, ns in rows if name == arm) for arm in timers}
        made = {
            "gpu": torch.cuda.get_device_name(),
            "layers": first.spec.layers,
            "keep": keep,
            "turn": turn,
            "nodes": {name: len(mine) for name, mine in nodes.items()},
            "experts": experts,
            "idle_ns": {name: found[f"idle {name}"] for name in launches},
            "covered_ns": {name: found[f"covered {name}"] for name in launches},
            "disabled_node_ns": round(cost, 1),
        }
        on.close()
        first.close()
    return made


def _experts(launch: Callable[[], object], whole: Callable[[], object], chosen: list[Any]) -> float:
    """Experts that the tokens of a layer choose, mean over layers, after a whole replay and three of this launch."""
    whole()
    for _ in range(3):
        launch()
    torch.cuda.synchronize()
    return round(statistics.mean(int(torch.unique(ids).numel()) for ids in chosen), 2)


if __name__ == "__main__":
    raise SystemExit(main())
