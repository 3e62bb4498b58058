"""How far the measurement itself can be trusted: A/A comparisons, injected delays, and the knock-out of a known graph.

    python benchmarks/lab.py noise OUT --make FILE --only knockout,place,rounds --process K --of N --seconds S

The graph is that of the sample `h200_ar_norm`: 45 layers of two GEMMs and one ar_norm site, built by its own make.py.
Every comparison captures each arm anew, several times, as `fusionscope ab` does, and leaves the block values of every
capture as a line of OUT/noise.jsonl; lab_noise_report.py judges them. Processes with other numbers draw other places
for the captures' buffers.

`rounds`: N processes on one GPU take turns, one capturing and timing while the others wait. In each of the first
AA_ROUNDS rounds every process compares the program with itself, and the N of them are one comparison of `ab`. The
median noise floor that `ab` tells of those is the delay that the candidates of all later rounds carry, once and twice.
Nothing else differs between the two kinds of rounds: the same graph, the same spinning kernel in all arms, as many
captures and blocks.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
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

PARTS = ("knockout", "place", "rounds")
#: Captures of each arm in a process, blocks, and timed replays in a turn, of every round.
CAPTURES, BLOCKS, REPLAYS = 4, 4, 3
#: Rounds that compare the program with itself, before the first with a delay.
AA_ROUNDS = 30
#: A spinning kernel in every arm of a round: only its length differs.
SHORT_NS = 1000
#: Captures that are knocked out in one process, blocks of each, and blocks of the captures whose places are compared.
KNOCKED, KNOCKED_BLOCKS, PLACED, PLACED_BLOCKS = 6, 15, 6, 12
#: Blocks of every way of launching.
LAUNCHED_BLOCKS = 8
#: Seconds in which a process must have taken its turn.
PATIENCE = 60.0


def work(options: argparse.Namespace) -> int:
    """The parts that `--only` names (all without it), until the time is up."""
    begin = time.monotonic()
    file = options.out / "noise.jsonl"
    wanted = options.only.split(",") if options.only else PARTS
    bench = Bench(sample(options.make), options.process)
    facts = {"process": options.process, "gpu": torch.cuda.get_device_name()}
    if "knockout" in wanted:
        probe = Probe()
        for k in range(KNOCKED):
            add(file, {"what": "knockout", **facts, "capture": k, **knock_out(bench, k, probe)})
            bench.clear()
            if time.monotonic() > begin + options.seconds:
                break
    if "place" in wanted:
        add(file, {"what": "place", **facts, **places(bench)})
        bench.clear()
    if "rounds" in wanted:
        rounds(bench, file, facts, options.of, begin + options.seconds)
    return 0


def rounds(bench: Bench, file: Path, facts: Mapping[str, Any], of: int, end: float) -> None:
    """Comparisons with itself, and then with delays, until the time of the first of the processes is up.

    The lines of one comparison have the same `first` (number of the first process) and `trial`.
    """
    first = bench.process - bench.process % of
    turns = Turns(file.parent, first, bench.process % of, of)
    clocks = Clocks()
    on = CudaGraphs()
    cycle = on.ns_per_cycle()
    on.close()
    bench.capture("split", "warm")
    bench.clear()
    turns.wait_for_all()
    mde = 0.0
    while (number := turns.mine(end)) is not None:
        facts_of = {**facts, "first": first, "of": of, "trial": number}
        if number < AA_ROUNDS:
            longer = {measure.BASE: 0.0, measure.CANDIDATE: 0.0}
        else:
            mde = mde or _mde(file, first, of)
            longer = {measure.BASE: 0.0, "once": mde, "twice": 2 * mde}
        what = "aa" if number < AA_ROUNDS else "power"
        add(file, {"what": what, **facts_of, **trial(bench, cycle, longer, number), "mhz": clocks.read().sm_mhz})
        turns.pass_on()


class Turns:
    """Processes of one GPU that take turns: a file holds the number of turns that were taken, or that it is over."""

    def __init__(self, folder: Path, first: int, place: int, of: int) -> None:
        self._folder, self._first, self._place, self._of = folder, first, place, of
        self._file = folder / f"turn{first}"

    def wait_for_all(self) -> None:
        """Return when every process has built and captured, so that none is disturbed by another's beginning."""
        (self._folder / f"ready{self._first + self._place}").touch()
        until = time.monotonic() + PATIENCE
        while not all((self._folder / f"ready{self._first + k}").exists() for k in range(self._of)):
            self._rest(until)

    def mine(self, end: float) -> int | None:
        """The number of the round as soon as it is this process's turn; None when the first of them ended it."""
        until = time.monotonic() + PATIENCE
        while True:
            said = self._file.read_text() if self._file.exists() else "0"
            if said == "end":
                return None
            if int(said) % self._of == self._place:
                number = int(said) // self._of
                if self._place == 0 and time.monotonic() >= end:
                    self._write("end")
                    return None
                return number
            self._rest(until)

    def pass_on(self) -> None:
        """The next process's turn."""
        self._write(str(int(self._file.read_text() if self._file.exists() else "0") + 1))

    def _write(self, text: str) -> None:
        whole = self._file.with_suffix(f".{self._place}")
        whole.write_text(text)
        whole.replace(self._file)

    @staticmethod
    def _rest(until: float) -> None:
        if time.monotonic() > until:
            raise TimeoutError("another process did not take its turn")
        time.sleep(0.002)


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


class Probe:
    """Tells in which of two states the GPU is: a launch of the same graph takes 0.3 us more a node in the slow one."""

    def __init__(self) -> None:
        self._on = CudaGraphs()
        self._launch = self._on.without(self._on.chain(500), range(1, 499))

    def node_ns(self) -> float:
        """What a disabled node takes now, the graph's beginning included, ns."""
        return round(statistics.median(self._on.timed(self._launch) for _ in range(21)) / 500, 1)


def knock_out(bench: Bench, k: int, probe: Probe) -> dict[str, Any]:
    """One capture by the sample's own procedure and by this project's, ns: both kernels, the norms, the all-reduces.

    `launched` has in the same blocks what the ways of launching and timing make of it: the base by its graph (`split`)
    or by a copy with nothing disabled (`copy`), launched as the sample does (`theirs`), by this project's copies on an
    idle GPU (`idle`), and those behind a spin that covers what the host takes (`covered`). `node_ns` tells the state of
    the GPU after each of the steps.
    """
    made, on = bench.made, CudaGraphs()
    state = {"begin": probe.node_ns()}
    graph, ranges = bench.capture("split", "split", k)
    one, _ = bench.capture("fused", "fused", k)
    picks: dict[str, Callable[[int, int], Any]] = {
        "both": lambda i, j: range(i, j),
        "ar": lambda i, j: [i],
        "norm": lambda i, j: [j - 1],
    }
    theirs = {name: made.knocked_out(graph, ranges, pick) for name, pick in picks.items()}
    arms = {"split": graph.replay, "fused": one.replay, **theirs}
    taken: dict[str, list[float]] = {name: [] for name in arms}
    state["captured"] = probe.node_ns()
    for launch in arms.values():
        for _ in range(10):
            made.timed(launch)
    for block in range(KNOCKED_BLOCKS):
        order = ["split", "fused", "fused", "split"] if (block + k) % 2 else ["fused", "split", "split", "fused"]
        for arm in [*order, *picks]:
            taken[arm] += [made.timed(arms[arm]) for _ in range(10)]
    state["by the sample"] = probe.node_ns()
    cost = measure.disabled_node_ns(graphs=on)
    ours = {}
    for name, pick in picks.items():
        nodes = [node for i, j in ranges for node in pick(i, j)]
        found = measure.knockout(graph, nodes, blocks=KNOCKED_BLOCKS, disabled_ns=cost, graphs=on)
        ours[name] = {"base": found.base_ns, "raw": found.raw_ns, "nodes": found.nodes}
    state["ours"] = probe.node_ns()
    fused = {"fused": one.replay, "fused copy": on.without(one, [])}
    here = {"split": graph.replay, "copy": on.without(graph, []), **fused}
    here |= {name: on.without(graph, [n for i, j in ranges for n in pick(i, j)]) for name, pick in picks.items()}
    there = {"split": graph.replay, "copy": made.knocked_out(graph, ranges, lambda i, j: []), **theirs}
    state["copied"] = probe.node_ns()
    ways: dict[str, tuple[Mapping[str, Any], Callable[[Any], int]]] = {
        "theirs": (there, lambda launch: round(made.timed(launch) * 1e3)),
        "idle": (here, on.timed),
        "covered": (here, on.covered),
    }
    timers = {
        f"{way}: {arm}": (lambda launch=launch, timed=timed: timed(launch))
        for way, (launches, timed) in ways.items()
        for arm, launch in launches.items()
    }
    rows = measure.in_blocks(timers, LAUNCHED_BLOCKS, REPLAYS, seed=k)
    state["launched"] = probe.node_ns()
    late = measure.delay(graph, [j - 1 for _, j in ranges], 2.0, blocks=6, graphs=on)
    launching = {name: _launching(launch) for name, launch in here.items()}
    state["delayed"] = probe.node_ns()
    on.close()
    state["closed"] = probe.node_ns()
    return {
        "sample": {name: round(statistics.median(times) * 1e3) for name, times in taken.items()},
        "ours": ours,
        "launched": {arm: statistics.median(ns for _, name, ns in rows if name == arm) for arm in timers},
        "host_launch_ns": launching,
        "node_ns": state,
        "disabled_node_ns": cost,
        "criticality": late.criticality,
    }


def _launching(launch: Callable[[], object]) -> float:
    """What the host takes for a launch on an idle GPU, ns."""
    times = []
    for _ in range(30):
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        launch()
        times.append(time.perf_counter_ns() - begin)
    torch.cuda.synchronize()
    return float(statistics.median(times))


def places(bench: Bench) -> dict[str, Any]:
    """Block values of captures made one after the other, and of captures whose buffers are moved; of both kinds."""
    named: dict[str, Any] = {}
    for kind in ("split", "fused"):
        for k in range(PLACED if kind == "split" else CAPTURES):
            named[f"{kind} plain {k}"] = bench.capture(kind)[0]
            named[f"{kind} moved {k}"] = bench.capture(kind, "place", kind, k)[0]
    return {"blocks": _timed({name: graph.replay for name, graph in named.items()}, PLACED_BLOCKS, bench.process)}


def trial(bench: Bench, cycle: float, longer: Mapping[str, float], number: int) -> dict[str, Any]:
    """Arms of one program, each captured several times, with a spinning kernel that is longer by so many ns in each."""
    begin, on = time.monotonic(), CudaGraphs()
    short = round(SHORT_NS / cycle)
    more = {kind: round(ns / cycle) for kind, ns in longer.items()}
    launches = {}
    for arm in _arms(*longer):
        graph = bench.capture("split", "trial", number, arm)[0]
        launches[arm] = on.delayed(graph, [len(on.nodes(graph)) // 2], short + more[arm.split()[0]])
    found = _timed(launches, BLOCKS, 1000 * bench.process + number)
    on.close()
    del launches, graph
    bench.clear()
    return {
        "blocks": found,
        "injected_ns": {kind: cycles * cycle for kind, cycles in more.items()},
        "seconds": round(time.monotonic() - begin, 3),
    }


def _arms(*kinds: str) -> list[str]:
    """The captures of the arms, one of each in turn."""
    names = [measure.names_of(kind, CAPTURES) for kind in kinds]
    return [arm for of_each in zip(*names, strict=True) for arm in of_each]


def _timed(launches: Mapping[str, Any], blocks: int, seed: int) -> dict[str, list[float]]:
    """Block values of each arm, ns."""
    on = CudaGraphs()
    timers = {arm: (lambda launch=launch: on.timed(launch)) for arm, launch in launches.items()}
    timings = measure.as_table(measure.in_blocks(timers, blocks, REPLAYS, seed=seed))
    return {arm: ab.block_values(timings, arm).tolist() for arm in launches}


def _mde(file: Path, first: int, of: int) -> float:
    """The median noise floor that `ab` tells of the comparisons with itself; the same for every process, ns."""
    mine = [row for row in lines(file) if row.get("first") == first]
    told = [row["ns"] for row in mine if row["what"] == "mde"]
    if told:
        return float(told[0])
    trials: dict[int, list[dict[str, Any]]] = {}
    for row in mine:
        trials.setdefault(row["trial"], []).append(row)
    whole = [of_trial for of_trial in trials.values() if len(of_trial) == of]
    mde = float(np.median([compared(of_trial).mde_ns or 0.0 for of_trial in whole]))
    add(file, {"what": "mde", "first": first, "of": of, "ns": mde, "comparisons": len(whole)})
    return mde
