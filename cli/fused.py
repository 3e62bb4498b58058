"""What the options of `fusionscope estimate` claim of the fused kernel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fusionscope.analysis.estimate import Fused
    from fusionscope.analysis.floors import Shape
    from fusionscope.profiler.readers.bench_csv import BenchRow
    from fusionscope.profiler.store import Store


@dataclass(frozen=True)
class Claim:
    """The fused kernel, and the row of a bench that it was taken from."""

    fused: Fused
    row: BenchRow | None = None
    #: The table or run that holds the row.
    bench: str = ""

    def document(self) -> dict[str, object]:
        """The claim as JSON; `class` is how far the time is trusted."""
        fused, row = self.fused, self.row
        return {
            "speedup": fused.speedup,
            "time_us": _us(fused.time_ns),
            "launches": fused.launches,
            "class": fused.trust(),
            "isolated_split_us": _us(fused.split_ns) if fused.trust() == "isolated-corrected" else None,
            "bench": None
            if row is None
            else {"from": self.bench, "tokens": row.tokens, "setting": row.setting, "path": row.path or None},
        }

    def sentence(self) -> str:
        """`4.03 us a site in 1 launch, in-context (triton at 4 tokens of bench.csv)`."""
        from fusionscope.cli.output import counted

        fused, row = self.fused, self.row
        told = f"{fused.speedup:g} times as fast" if fused.time_ns is None else f"{fused.time_ns / 1000:.2f} us a site"
        told += f" in {counted(fused.launches, 'launch')}, {fused.trust()}"
        if row is None:
            return told
        which = f"{row.path} at " if row.path else ""
        return f"{told} ({which}{counted(row.tokens, 'token')} of {self.bench})"


def claim(
    speedup: float | None, fused_us: float | None, launches: int, source: str, isolated_split_us: float | None = None
) -> Claim | None:
    """What the options claim of the fused kernel, None where they claim nothing.

    Raises FusionScopeError where they do not fit together.
    """
    from fusionscope.analysis.estimate import Fused
    from fusionscope.profiler.errors import FusionScopeError

    sources = ("candidate", "in-context", "isolated", "guess")
    if speedup is not None and fused_us is not None:
        raise FusionScopeError("Give either --speedup S or --fused-us T: one of them says how fast the fused site is.")
    if source not in sources:
        raise FusionScopeError(f"--fused-from {source} is not known: choose {', '.join(sources)}.")
    if isolated_split_us is not None and (fused_us is None or source != "isolated"):
        raise FusionScopeError("--isolated-split-us goes with --fused-us T --fused-from isolated, taken the same way.")
    speedup, fused_us = positive("--speedup", speedup), positive("--fused-us", fused_us)
    split = positive("--isolated-split-us", isolated_split_us)
    if speedup is None and fused_us is None:
        return None
    return Claim(
        Fused(
            speedup=speedup,
            time_ns=None if fused_us is None else fused_us * 1000,
            launches=launches,
            source=source,
            split_ns=None if split is None else split * 1000,
        )
    )


def from_bench(
    bench: str, store: Store, boundary: str, shape: Shape, launches: int, others: tuple[float | None, ...],
    which: str = "",
) -> Claim:  # fmt: skip
    """The fused kernel as a bench has it, a CSV file or a run of `fusionscope bench`.

    Raises FusionScopeError where another option claims a time too, or the bench is of another boundary or width.
    """
    from fusionscope.analysis.estimate import Fused
    from fusionscope.analysis.floors import shape_of
    from fusionscope.profiler import runinfo
    from fusionscope.profiler.errors import FusionScopeError
    from fusionscope.profiler.readers.bench_csv import bench_row, read_bench, rows_of_run

    if any(value is not None for value in others):
        raise FusionScopeError("--from brings the fused time: leave --speedup, --fused-us and --isolated-split-us out.")
    is_table = Path(bench).is_file() or Path(bench).suffix.lower() == ".csv"
    if is_table:
        rows = read_bench(bench)
    else:
        info = runinfo.read(store.find(bench))
        rows = rows_of_run(info, boundary)
        width = shape_of(info).hidden
        if width and shape.hidden and width != shape.hidden:
            raise FusionScopeError(
                f"{bench} was taken at a hidden width of {width:,} ({info.model}), and this step has {shape.hidden:,}: "
                "bench with its model, or say its width with --hidden."
            )
    row = bench_row(rows, shape.tokens, bench, which)
    alone = row.setting.startswith("isolated")
    fused = Fused(
        time_ns=row.fused_ns,
        launches=launches,
        source="isolated" if alone else row.setting,
        split_ns=row.split_ns,
    )
    return Claim(fused, row, bench)


def positive(name: str, value: float | None) -> float | None:
    """The value of an option that must be above 0."""
    from fusionscope.profiler.errors import FusionScopeError

    if value is not None and not 0 < value < float("inf"):
        raise FusionScopeError(f"{name} must be a number above 0, not {value:g}.")
    return value


def _us(ns: float | None) -> float | None:
    return None if ns is None else ns / 1000
