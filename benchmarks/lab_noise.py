"""How far the measurement itself can be trusted: A/A comparisons, injected delays, and the knock-out of a known graph.

    python benchmarks/lab.py noise OUT --make FILE --only knockout,place,aa,power --process K --seconds S

The graph is that of the sample `h200_ar_norm`: 45 layers of two GEMMs and one ar_norm site, built by its own make.py.
Every comparison captures each arm anew, several times, as `fusionscope ab` does, and leaves the block values of every
capture as a line of OUT/noise.jsonl; lab_noise_report.py judges them. Processes with other numbers draw other places
for the captures' buffers.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lab import add, lines
from lab_noise_compare import compared

from fusionscope.analysis import ab
from fusionscope.profiler import measure
from fusionscope.profiler.capture.clocks import Clocks
from fusionscope.profiler.capture.graph_copies import CudaGraphs
from fusionscope.profiler.capture.placement import padding

PARTS = ("knockout", "place", "aa", "power")
CAPTURES, BLOCKS, REPLAYS = 4, 6, 2
#: Blocks of a trial with delays, and processes of a comparison, as `ab` has by default.
POWER_BLOCKS, PROCESSES = 4, 3
#: Clock cycles of a spin that covers what the host takes to launch a graph.
COVER = 200_000
#: Of the time that a process has, comparisons of the program with itself take this part; delays take the rest.
AA_SHARE = 0.7
#: A spinning kernel in both arms: only its length differs.
SHORT_NS = 1000
#: Captures that are knocked out in one process, blocks of each, and blocks of the captures whose places are compared.
KNOCKED, KNOCKED_BLOCKS, PLACED, PLACED_BLOCKS = 6, 15, 6, 12


def work(options: argparse.Namespace) -> int:
    """The parts that `--only` names (all without it), until the time is up."""
    begin = time.monotonic()
    file = options.out / "noise.jsonl"
    wanted = options.only.split(",") if options.only else PARTS
    bench = Bench(sample(options.make), options.process)
    facts = {"process": options.process, "gpu": torch.cuda.get_device_name()}
    if "knockout" in wanted:
        for k in range(KNOCKED):
            add(file, {"what": "knockout", **facts, "capture": k, **knock_out(bench, k)})
        bench.clear()
    if "place" in wanted:
        add(file, {"what": "place", **facts, **places(bench)})
        bench.clear()
    clocks = Clocks()
    if "aa" in wanted:
        until = begin + options.seconds * (AA_SHARE if "power" in wanted else 1.0)
        for trial in _until(until):
            add(
                file,
                {"what": "aa", **facts, "trial": trial, **against_itself(bench, trial), "mhz": clocks.read().sm_mhz},
            )
    if "power" in wanted:
        mde = _mde(file)
        for trial in _until(begin + options.seconds):
            add(file, {"what": "power", **facts, "trial": trial, **injected(bench, mde, trial)})
    return 0


def _until(end: float) -> Iterator[int]:
    trial = 0
    while time.monotonic() < end:
        yield trial
        trial += 1


def sample(path: Path) -> Any:
    """The module that builds the sample's graph."""
    spec = importlib.util.spec_from_file_location("sample_make", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Bench:
    """Captures of the sample's graph over one set of weights."""

    def __init__(self, made: Any, process: int) -> None:
        layers = range(made.LAYERS)
        self.made, self.process = made, process
        self.weights = (
            [made.rand(made.HIDDEN, made.INNER) for _ in layers],
            [made.rand(made.INNER, made.HIDDEN) for _ in layers],
            [made.rand(made.TOKENS, made.HIDDEN) for _ in range(3)],
            torch.ones(made.HIDDEN, device="cuda", dtype=torch.bfloat16),
        )
        self._kept: list[Any] = []

    def capture(self, kind: str, *what: object) -> Any:
        """(graph, ranges of sites); with words, its buffers lie where those words draw."""
        sizes = padding(self.process, *what) if what else (0,)
        # The inputs lie outside the graph's own pool.
        self._kept.append(torch.empty(sizes[0], dtype=torch.uint8, device="cuda"))
        plain = self.made.rand

        def kept(*shape: int) -> Any:
            # `build` keeps no hold of the tensors that its graph reads.
            self._kept.append(plain(*shape))
            return self._kept[-1]

        self.made.rand = kept
        try:
            with behind(sizes):
                return self.made.build(kind, self.weights)
        finally:
            self.made.rand = plain

    def clear(self) -> None:
        """Let the memory of captures go that nobody holds any more."""
        self._kept.clear()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


@contextmanager
def behind(sizes: tuple[int, ...]) -> Iterator[None]:
    """Captures made inside allocate buffers of these sizes first."""
    plain = torch.cuda.graph

    class Behind(plain):  # type: ignore[misc, valid-type]
        def __enter__(self) -> None:
            super().__enter__()
            self.first = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]

    torch.cuda.graph = Behind
    try:
        yield
    finally:
        torch.cuda.graph = plain


def knock_out(bench: Bench, k: int) -> dict[str, Any]:
    """One capture by the sample's own procedure and by this project's, ns: both kernels, the norms, the all-reduces."""
    made, on = bench.made, CudaGraphs()
    graph, ranges = bench.capture("split", "split", k)
    one, _ = bench.capture("fused", "fused", k)
    picks: dict[str, Callable[[int, int], Any]] = {
        "both": lambda i, j: range(i, j),
        "ar": lambda i, j: [i],
        "norm": lambda i, j: [j - 1],
    }
    arms = {"split": graph.replay, "fused": one.replay}
    arms |= {name: made.knocked_out(graph, ranges, pick) for name, pick in picks.items()}
    taken: dict[str, list[float]] = {name: [] for name in arms}
    for launch in arms.values():
        for _ in range(10):
            made.timed(launch)
    for block in range(KNOCKED_BLOCKS):
        order = ["split", "fused", "fused", "split"] if (block + k) % 2 else ["fused", "split", "split", "fused"]
        for arm in [*order, *picks]:
            taken[arm] += [made.timed(arms[arm]) for _ in range(10)]
    cost = measure.disabled_node_ns(graphs=on)
    launches = {"split": graph.replay, "copy": on.without(graph, [])}
    launches |= {name: on.without(graph, [n for i, j in ranges for n in pick(i, j)]) for name, pick in picks.items()}
    covered = {arm: statistics.median(v) for arm, v in _timed(launches, KNOCKED_BLOCKS, k, _behind_a_spin(on)).items()}
    ours = {}
    for name, pick in picks.items():
        nodes = [node for i, j in ranges for node in pick(i, j)]
        found = measure.knockout(graph, nodes, blocks=KNOCKED_BLOCKS, disabled_ns=cost, graphs=on)
        ours[name] = {"base": found.base_ns, "raw": found.raw_ns, "nodes": found.nodes}
    late = measure.delay(graph, [j - 1 for _, j in ranges], 2.0, blocks=6, graphs=on)
    on.close()
    return {
        "sample": {name: round(statistics.median(times) * 1e3) for name, times in taken.items()},
        "ours": ours,
        "covered": covered,
        "disabled_node_ns": cost,
        "criticality": late.criticality,
    }


def places(bench: Bench) -> dict[str, Any]:
    """Block values of captures made one after the other, and of captures whose buffers are moved; of both kinds."""
    named: dict[str, Any] = {}
    for kind in ("split", "fused"):
        for k in range(PLACED if kind == "split" else CAPTURES):
            named[f"{kind} plain {k}"] = bench.capture(kind)[0]
            named[f"{kind} moved {k}"] = bench.capture(kind, "place", kind, k)[0]
    return {"blocks": _timed({name: graph.replay for name, graph in named.items()}, PLACED_BLOCKS, bench.process)}


def against_itself(bench: Bench, trial: int) -> dict[str, Any]:
    """One program as base and as candidate, each captured several times."""
    begin = time.monotonic()
    arms = _arms(measure.BASE, measure.CANDIDATE)
    named = {arm: bench.capture("split", "aa", trial, arm)[0] for arm in arms}
    found = _timed({arm: graph.replay for arm, graph in named.items()}, BLOCKS, 1000 * bench.process + trial)
    del named
    bench.clear()
    return {"blocks": found, "seconds": round(time.monotonic() - begin, 3)}


def injected(bench: Bench, mde: float, trial: int) -> dict[str, Any]:
    """A spinning kernel in the middle of the graph: as long in one candidate, longer by one and two MDE in two."""
    begin, on = time.monotonic(), CudaGraphs()
    cycle = on.ns_per_cycle()
    short = round(SHORT_NS / cycle)
    longer = {measure.BASE: 0, "same": 0, "once": round(mde / cycle), "twice": round(2 * mde / cycle)}
    launches = {}
    for arm in _arms(*longer):
        graph = bench.capture("split", "power", trial, arm)[0]
        launches[arm] = on.delayed(graph, [len(on.nodes(graph)) // 2], short + longer[arm.split()[0]])
    found = _timed(launches, POWER_BLOCKS, 500_000 + 1000 * bench.process + trial)
    on.close()
    del launches, graph
    bench.clear()
    return {
        "blocks": found,
        "injected_ns": {kind: more * cycle for kind, more in longer.items()},
        "seconds": round(time.monotonic() - begin, 3),
    }


def _arms(*kinds: str) -> list[str]:
    """The captures of the arms, one of each in turn."""
    names = [measure.names_of(kind, CAPTURES) for kind in kinds]
    return [arm for of_each in zip(*names, strict=True) for arm in of_each]


def _timed(
    launches: dict[str, Any], blocks: int, seed: int, timed: Callable[[Any], int] | None = None
) -> dict[str, list[float]]:
    """Block values of each arm, ns."""
    timed = timed or CudaGraphs().timed
    timers = {arm: (lambda launch=launch: timed(launch)) for arm, launch in launches.items()}
    timings = measure.as_table(measure.in_blocks(timers, blocks, REPLAYS, seed=seed))
    return {arm: ab.block_values(timings, arm).tolist() for arm in launches}


def _behind_a_spin(on: CudaGraphs) -> Callable[[Any], int]:
    """A timer that keeps the GPU busy while the host launches, so that the launch is in no time."""

    def timed(launch: Any) -> int:
        torch.cuda._sleep(COVER)
        return on.timed(launch)

    return timed


def _mde(file: Path) -> float:
    """The median noise floor of comparisons with itself over three processes; the same for every process, ns."""
    rows = lines(file)
    told = [row["ns"] for row in rows if row["what"] == "mde"]
    if told:
        return float(told[0])
    trials: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if row["what"] == "aa":
            trials.setdefault(row["trial"], []).append(row)
    whole = [of_trial[:PROCESSES] for of_trial in trials.values() if len(of_trial) >= PROCESSES]
    mde = float(np.median([compared(of_trial).mde_ns or 0.0 for of_trial in whole]))
    add(file, {"what": "mde", "ns": mde, "comparisons": len(whole), "processes": PROCESSES})
    return mde
