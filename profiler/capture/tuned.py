"""Measures the boundaries of a model on every path and keeps the table of this machine's GPU."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fusionscope.profiler.capture.plan import CaptureError, CapturePlan
from fusionscope.profiler.progress import Progress

if TYPE_CHECKING:
    from fusionscope.fusion_runtime.measuring import Measured
    from fusionscope.fusion_runtime.tuning import Table


@dataclass(frozen=True)
class Tuned:
    """What was measured now (`measured`, `gates`), the whole table that was written, and where."""

    measured: list[Measured]
    gates: list[str]
    table: Table
    path: Path
    rank: int
    label: str
    #: Whether Ctrl-C ended it before everything was measured.
    early: bool = False

    def declined(self) -> dict[str, str]:
        """Path to the first reason why it stepped back, of those that ran nowhere."""
        ran = {path for one in self.measured for path in one.row.us}
        reasons: dict[str, str] = {}
        for one in self.measured:
            for path, why in one.declined.items():
                if path not in ran:
                    reasons.setdefault(path, why)
        return reasons

    def document(self) -> dict[str, Any]:
        """For --json."""
        return {
            "gpu": self.table.gpu,
            "written": str(self.path),
            "gates": self.gates,
            "early": self.early,
            "rows": [asdict(one.row) | {"declined": dict(one.declined)} for one in self.measured],
        }


def tuned(model: str, tp: int, tokens: str, device: str, out: Path | None, progress: Progress) -> Tuned:
    """Measures and writes; Ctrl-C ends it, and what was measured is written.

    Raises CaptureError or a RuntimeContractError that names the next step; KeyboardInterrupt where nothing
    was measured.
    """
    from fusionscope.profiler.capture import choose, forward

    counts = numbers(tokens)
    torch = choose.need_torch()
    from fusionscope.fusion_runtime import measuring, tuning

    on = choose.device_of(torch, device)
    spec = forward.spec_of(model, on, 0)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks not in (1, tp) or (on == "cpu" and ranks != tp):
        raise CaptureError(
            f"--tp {tp} needs {tp} ranks and {ranks} run: start it with torchrun --no-python --nproc-per-node {tp} "
            "fusionscope tune."
        )
    emulated = on == "cuda" and ranks < tp
    plan = CapturePlan(
        model=model, tp=tp, batch=1, context=1, device=on, profiler="torch", paths={"ar_norm": "auto"},
        emulated=emulated,
    )  # fmt: skip
    total = len(measuring.boundaries_of(spec)) * len(counts)
    found: list[Measured] = []
    early = False
    with forward.group_of(plan) as group, torch.no_grad():
        try:
            for one in measuring.measure(spec, group, on, counts, emulated):
                found.append(one)
                progress(len(found), total, f"{one.row.boundary}, {one.row.tokens} tokens")
        except KeyboardInterrupt:
            if not found:
                raise
            early = True
        rank = int(group.rank)
    gpu = torch.cuda.get_device_name() if on == "cuda" else "cpu"
    path = out or tuning.own_path(gpu)
    rows = [one.row for one in found]
    before = tuning.read(path, gpu).rows if path.is_file() else ()
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
    measured = {name: version for name, version in versions.items() if version}
    table = tuning.Table(gpu, tuning.merged(rows, before), measured)
    if rank == 0:
        tuning.write(table, path)
    label = f" (ranks emulated on one GPU: {tp})" if emulated else ""
    return Tuned(found, tuning.Table(gpu, rows).gates(), table, path, rank, label, early)


def numbers(text: str) -> list[int]:
    """The numbers of `--tokens`. Raises CaptureError where one is none, or below 1."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = [0]
    if found[0] < 1:
        raise CaptureError(f"--tokens takes numbers from 1 on, separated by commas, as in 1,4,16; not {text!r}.")
    return found
