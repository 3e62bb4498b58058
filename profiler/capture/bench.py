"""A boundary in its context and alone: each way to run it is checked against the reference, and only then timed."""

from __future__ import annotations

import csv
import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from fusionscope.profiler import measure, runinfo
from fusionscope.profiler.capture import bandwidth, cupti, machine
from fusionscope.profiler.capture.session import terminable
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.progress import Progress, quiet
from fusionscope.profiler.readers.bench_csv import BENCH, COLUMNS, SPLIT, bench_rows
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run, Store, check_name
from fusionscope.profiler.trace import Trace, table

#: Relative error against the reference that a bf16 kernel may have.
TOLERANCE = 0.02
#: How often the boundary runs alone in a graph: in cache, and with the cache flushed before each.
HOT, COLD = 48, 10
EARLY = "The bench was ended early: it holds the numbers of tokens that were finished."


@dataclass(frozen=True)
class Row:
    """One path at one number of tokens; times of a site in ns, None where they were not taken.

    `why` says why there is no time: the path stepped back, or its result is wrong. `chain_ns` is a step of the chain,
    `saving_ns` what its site saves there against split (the difference of the chains over the sites).
    """

    tokens: int
    path: str
    error: float | None = None
    why: str = ""
    in_context_ns: float | None = None
    isolated_hot_ns: float | None = None
    isolated_cold_ns: float | None = None
    chain_ns: float | None = None
    saving_ns: float | None = None


class Machine(Protocol):
    """What a bench needs of the GPU."""

    def capture(self, run: Callable[[list[tuple[int, int]]], object]) -> tuple[Any, list[tuple[int, int]]]: ...
    def timed(self, graph: Any) -> int: ...
    def site_ns(self, graph: Any, marks: list[tuple[int, int]]) -> float | None: ...
    def flush(self) -> None: ...
    def facts(self) -> dict[str, str]: ...


def load_function(path: str) -> Callable[..., Any]:
    """The function that `package.module:function` names; the working folder can be imported from.

    Raises FusionScopeError where there is none.
    """
    module, _, name = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise FusionScopeError(
            f"--path {path} cannot be loaded ({error}): write package.module:function, importable from this folder."
        ) from error
    if not callable(found):
        raise FusionScopeError(f"--path {path} is no function: write package.module:function.")
    function: Callable[..., Any] = found
    return function


def bench_tokens(chain: Any, paths: Sequence[str], on: Machine, blocks: int = 12) -> tuple[list[Row], pd.DataFrame]:
    """A row for each path at the chain's tokens, and the TIMINGS of the chains; split is always timed too."""
    steps: dict[str, Any] = {}
    rows: dict[str, Row] = {}
    for path in dict.fromkeys([SPLIT, *paths]):
        step, declined = (chain.by_function(load_function(path)), []) if ":" in path else chain.by_path(path)
        error, why = _checked(chain, step, declined, own=":" in path)
        rows[path] = Row(chain.tokens, path, error, why)
        if not why:
            steps[path] = step
    built = {path: on.capture(lambda marks, s=step: chain.forward(s, marks)) for path, step in steps.items()}  # type: ignore[misc]
    timers = {path: (lambda g=graph: on.timed(g)) for path, (graph, _) in built.items()}
    taken = measure.in_blocks(timers, blocks, 4)
    chains = {path: float(np.median([ns for _, arm, ns in taken if arm == path])) for path in built}
    for path, step in steps.items():
        graph, marks = built[path]
        rows[path] = _timed(rows[path], chain, step, on, on.site_ns(graph, marks), chains)
    named = [(block, f"{path}, {chain.tokens} tokens", ns) for block, path, ns in taken]
    wanted = [rows[path] for path in rows if path == SPLIT or path in paths]
    return wanted, measure.as_table(named)


def _checked(chain: Any, step: Any, declined: list[str], own: bool) -> tuple[float | None, str]:
    """The error against the reference, and why there can be no time ("" where there can)."""
    try:
        error = float(chain.error(step))
    except Exception as problem:  # a user's kernel raises what it likes; the built-in paths do not
        if not own:
            raise
        return None, f"it failed with {type(problem).__name__}: {' '.join(str(problem).split())[:200]}"
    if declined:
        return None, declined[0]
    if not error <= TOLERANCE:
        return error, f"its result is off by {error:.2g} of the reference, which is more than {TOLERANCE:g}"
    return error, ""


def _timed(row: Row, chain: Any, step: Any, on: Machine, site: float | None, chains: dict[str, float]) -> Row:
    hot, _ = on.capture(lambda marks: chain.alone(step, HOT, lambda: None, marks))
    cold, marks = on.capture(lambda marks: chain.alone(step, COLD, on.flush, marks))
    times = sorted(on.timed(hot) for _ in range(15))
    saved = (chains[SPLIT] - chains[row.path]) / chain.sites if SPLIT in chains else None
    return Row(
        row.tokens, row.path, row.error, "", site, times[7] / HOT, on.site_ns(cold, marks), chains[row.path], saved
    )  # fmt: skip


def table_rows(rows: Sequence[Row]) -> list[dict[str, object]]:
    """The bench table that `estimate --from` reads: a line for each fused path, setting and number of tokens."""
    return [
        {
            "tokens": row.tokens,
            "split_us": "" if row.split_ns is None else f"{row.split_ns / 1e3:.3f}",
            "fused_us": f"{row.fused_ns / 1e3:.3f}",
            "setting": row.setting,
            "path": row.path,
        }
        for row in bench_rows(asdict(row) for row in rows)
    ]


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """The bench table as CSV."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, (*COLUMNS, "path"))
        writer.writeheader()
        writer.writerows(table_rows(rows))


def run_bench(
    boundary: str,
    model: str,
    tp: int,
    tokens: Sequence[int],
    paths: Sequence[str],
    store: Store,
    name: str = "",
    progress: Progress = quiet,
    command: Sequence[str] = (),
) -> tuple[Run, list[Row]]:
    """Bench on this machine's GPU and store the run, with the table as bench.csv in its folder.

    Ctrl-C and SIGTERM end with the numbers of tokens that were finished; KeyboardInterrupt where none was.
    """
    from fusionscope.fusion_runtime.decode.boundary_chain import BoundaryChain, local_group
    from fusionscope.profiler.capture.forward import spec_of

    check_name(name)
    spec = spec_of(model, "cuda", 0)
    on = CudaMachine()
    rows: list[Row] = []
    timings: list[pd.DataFrame] = []
    ended: list[str] = []
    try:
        with terminable():
            for done, count in enumerate(tokens):
                progress(done, len(tokens), f"{boundary}: {count} tokens")
                chain = BoundaryChain(boundary, spec, local_group(tp, "cuda"), count, "cuda")
                found, times = bench_tokens(chain, paths, on)
                timings.append(times.astype({"arm": "object", "source": "object"}))
                rows += found
    except KeyboardInterrupt:
        if not rows:
            raise
        ended = [EARLY]
    told = table("timings", pd.concat(timings))
    return save(boundary, model, tp, rows, told, store, name, command, warnings=ended, facts=on.facts()), rows


def save(
    boundary: str, model: str, tp: int, rows: Sequence[Row], timings: pd.DataFrame, store: Store, name: str,
    command: Sequence[str], device: str = "cuda", warnings: Sequence[str] = (), facts: dict[str, str] | None = None,
) -> Run:  # fmt: skip
    """Store the rows as a run; `facts` are of the machine, beside those that are read."""
    labels = ["built-in model", "isolated bench"] + (["emulated ranks"] if tp > 1 else [])
    info = RunInfo(
        name=name,
        command=list(command),
        model=model,
        tp=tp,
        device=device,
        profiler="none",
        tracing_mode="none",
        machine=machine.describe(device) | (facts or {}),
        environment=runinfo.recorded_environment(),
        labels=runinfo.ordered_labels(labels),
        settings={BENCH: boundary, "rows": json.dumps([asdict(row) for row in rows])},
        emulated_ranks=tp > 1,
        warnings=list(warnings),
    )
    made = store.save(info, Trace(timings=timings))
    write_csv(made.path / "bench.csv", rows)
    return made


class CudaMachine:
    """Graphs on the current GPU; sites are traced with CUPTI, and have no time of their own where it does not load."""

    def __init__(self) -> None:
        import torch

        from fusionscope.profiler.capture.graph_copies import CudaGraphs

        self._torch, self._graphs = torch, CudaGraphs()
        self._big = torch.empty(256 * 2**20, dtype=torch.int8, device="cuda")
        self._kept: list[Any] = []

    def capture(self, run: Callable[[list[tuple[int, int]]], object]) -> tuple[Any, list[tuple[int, int]]]:
        """Run until nothing is compiled any more, then capture."""
        torch = self._torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            for _ in range(2):
                run([])
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        marks: list[tuple[int, int]] = []
        with torch.cuda.graph(graph), torch.no_grad():
            self._kept.append(run(marks))
        graph.instantiate()
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        return graph, marks

    def timed(self, graph: Any) -> int:
        """One replay, ns."""
        return self._graphs.timed(self._graphs.launch(graph))

    def facts(self) -> dict[str, str]:
        """What was measured of the GPU itself."""
        return bandwidth.measured()

    def flush(self) -> None:
        """Write more than the cache holds."""
        self._big.zero_()

    def site_ns(self, graph: Any, marks: list[tuple[int, int]], replays: int = 10) -> float | None:
        """Median over sites and replays of the time of a site's launches."""
        if cupti.unavailable() or not marks:
            return None
        with tempfile.TemporaryDirectory() as folder:
            with cupti.recording(Path(folder), 0):
                for _ in range(replays + 1):
                    graph.replay()
                    self._torch.cuda.synchronize()
            kernels = cupti.read(Path(folder), 0).kernels
        kernels = kernels[(kernels["kind"] == "kernel") & (kernels["replay"] >= 1)]
        times = [
            kernels[(kernels["node"] >= first) & (kernels["node"] < last)].groupby("replay")["duration_ns"].sum()
            for first, last in marks
        ]
        return float(np.median(np.concatenate([t.to_numpy() for t in times])))
