"""run.json of a run that other tools recorded."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from fusionscope.profiler import labels, runinfo
from fusionscope.profiler.importing import file_digest, ranks_of
from fusionscope.profiler.runinfo import InputFile, RunInfo
from fusionscope.profiler.trace import Trace


def run_info(
    files: Sequence[Path],
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

    `beside` are the files that came with the traces: provenance and replay times.

    The importing machine's environment is not recorded, as it is not the one that ran.
    """
    ranks = ranks_of(trace)
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
        inputs=[*(_input(path, alone) for path in files), *(_input(path) for path in beside)],
        settings=settings or {},
        imported=True,
        world_size=max(trace.world_size, tp or 0),
        warnings=list(trace.warnings),
    )


def _input(path: Path, rank: int = -1) -> InputFile:
    sha, size = file_digest(path)
    try:
        changed = datetime.fromtimestamp(Path(path).stat().st_mtime, UTC)
    except (OSError, OverflowError, ValueError):
        changed = None
    told = changed.isoformat(timespec="seconds") if changed else ""
    return InputFile(path=Path(path).name, sha256=sha, bytes=size, rank=rank, modified=told)
