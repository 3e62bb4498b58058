"""`fusionscope bench`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fusionscope.cli.common import JsonOpt, StoreOpt, emit, open_store

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.profiler.capture.bench import Row
    from fusionscope.profiler.store import Run


def bench(
    boundary: Annotated[str, typer.Argument(metavar="BOUNDARY", help="mhc_post, mhc_post_pre, moe_finalize, ar_norm.")],
    model: Annotated[str, typer.Option("--model", metavar="NAME", help="The built-in model whose shapes it has.")],
    tp: Annotated[int, typer.Option("--tp", metavar="N", help="Ranks, emulated on one GPU.")] = 4,
    tokens: Annotated[str, typer.Option("--tokens", metavar="T,…", help="Numbers of tokens.")] = "1,4,16,64",
    paths: Annotated[str, typer.Option("--paths", metavar="PATH,…", help="Paths to time beside split.")] = "triton",
    path: Annotated[
        list[str] | None,
        typer.Option("--path", metavar="MODULE:FUNCTION", help="A kernel of your own; repeatable."),
    ] = None,
    name: Annotated[str, typer.Option("--name", help="A name for the run.")] = "",
    store: StoreOpt = None,
    json: JsonOpt = False,
) -> None:
    """Time a boundary between its producer and its consumer in one graph, and alone, hot and cold.

    Each path is checked against the reference first; one that is wrong gets no time. Your own function takes (own,
    peers, *rest): this rank's partial sum (or the operands of a finalize), the other ranks' partial sums, then
    streams, post, comb, or residual, norm. It returns what the boundary returns.

    Example: fusionscope bench mhc_post --model glm-5.3-flash --tokens 1,4,16 --paths split,triton
    """
    from fusionscope.cli import output
    from fusionscope.profiler.capture.arms_plan import require_gpu
    from fusionscope.profiler.capture.bench import run_bench

    counts = numbers(tokens)
    chosen = [word.strip() for word in paths.split(",") if word.strip()] + list(path or [])
    require_gpu(
        "Timing a boundary in a graph",
        "with times of your own `fusionscope estimate RUN --boundary KIND --from TABLE.csv` goes on",
    )
    opened = open_store(store)
    with output.progress("timing") as progress:
        made, rows = run_bench(
            boundary, model, tp, counts, chosen, opened, name, progress, ["fusionscope", *sys.argv[1:]]
        )
    emit(json, payload(made, rows), lambda: render(made, rows))


def numbers(text: str) -> list[int]:
    """`1,4,16` as numbers. Raises FusionScopeError for anything else."""
    from fusionscope.profiler.errors import FusionScopeError

    found = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in found):
        raise FusionScopeError(f"--tokens is a list of whole numbers above 0 such as 1,4,16, not {text!r}.")
    return [int(part) for part in found]


def payload(made: Run, rows: list[Row]) -> dict[str, Any]:
    """The JSON of `bench`."""
    from dataclasses import asdict

    table = str(made.path / "bench.csv")
    return {"run": made.info.id, "path": str(made.path), "table": table, "labels": made.info.labels,
            "warnings": made.info.warnings, "rows": [asdict(row) for row in rows]}  # fmt: skip


def render(made: Run, rows: list[Row]) -> RenderableType:
    """The same for people."""
    from rich.console import Group
    from rich.text import Text

    from fusionscope.analysis.verdict import us
    from fusionscope.cli import output

    def time(ns: float | None) -> str:
        return "" if ns is None else us(ns)

    cells = [
        (row.tokens, row.path, *(time(ns) for ns in (row.in_context_ns, row.isolated_hot_ns, row.isolated_cold_ns,
                                                     row.saving_ns)), row.why)
        for row in rows
    ]  # fmt: skip
    columns = ("tokens", "path", "in context", "alone, hot", "alone, cold", "saves in the chain", "no time, because")
    boundary = made.info.settings["bench"]
    return Group(
        Text(f"Run {made.info.id} in {made.path}"),
        output.table(f"One site of {boundary} ({', '.join(made.info.labels)})", columns, cells, right=columns[2:6]),
        *(Text(f"Warning: {text}") for text in made.info.warnings),
        Text(f"Next: fusionscope estimate RUN --boundary {boundary} --from {made.info.name or made.info.id}"),
    )
