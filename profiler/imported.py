"""Runs that come from elsewhere: run.json of what other tools recorded, and packed runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from fusionscope.profiler import labels, runinfo
from fusionscope.profiler.importing import input_file, ranks_of
from fusionscope.profiler.runinfo import InputFile, RunInfo
from fusionscope.profiler.store import EXAMPLES, Run, Store
from fusionscope.profiler.trace import Trace


def run_info(
    files: Sequence[Path | InputFile],
    trace: Trace,
    *,
    model: str = "",
    tp: int | None = None,
    batch: int | None = None,
    context: int | None = None,
    settings: dict[str, str] | None = None,
    name: str = "",
    beside: Sequence[Path] = (),
) -> RunInfo:
    """What is known of an imported run: what the user says and what the files show.

    `files` are the traces, or what was said of them when they were read; `beside` are the files that came with them:
    provenance and replay times.

    The importing machine's environment is not recorded, as it is not the one that ran.
    """
    ranks = ranks_of(trace)
    read = [file if isinstance(file, InputFile) else input_file(file) for file in files]
    marks = labels.trace_labels(trace, tp or 0)
    alone = ranks[0] if len(files) == 1 and len(ranks) == 1 else -1
    return RunInfo(
        name=name,
        model=model,
        tp=-1 if tp is None else tp,
        batch=-1 if batch is None else batch,
        context=-1 if context is None else context,
        device="cpu" if "cpu" in marks else "cuda" if len(trace.kernels) else "",
        profiler=trace.machine.get("profiler", ""),
        tracing_mode="graph" if trace.graph_mode else "operators" if "cpu" in marks else "node",
        machine=dict(trace.machine),
        labels=runinfo.ordered_labels(marks),
        inputs=[*(msgspec.structs.replace(file, rank=alone) for file in read), *(input_file(path) for path in beside)],
        settings=settings or {},
        imported=True,
        world_size=max(trace.world_size, tp or 0),
        warnings=list(trace.warnings),
    )


def packed_run(store: Store, ref: str, name: str = "") -> Run:
    """Store a packed run (a file or URL) under a new id, and under another name if one is given.

    Its tags stay behind: whoever packed it does not decide what `tag:main` is here. Raises FusionScopeError where it
    cannot be read or stored.
    """
    run = store.load(ref)
    kept = "" if run.info.name in EXAMPLES else run.info.name
    return store.save(msgspec.structs.replace(run.info, name=name or kept, tags=[]), run.trace)
