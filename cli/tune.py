"""`fusionscope tune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fusionscope.cli.common import JsonOpt, emit

if TYPE_CHECKING:
    from rich.console import RenderableType


def tune(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model of `fusionscope capture --model`.")],
    tp: Annotated[int, typer.Option("--tp", min=1, metavar="N", help="Tensor-parallel ranks.")] = 1,
    tokens: Annotated[
        str, typer.Option("--tokens", metavar="T,…", help="Numbers of tokens to measure.")
    ] = "1,2,4,8,16,32,64,128,256",
    device: Annotated[str, typer.Option("--device", help="auto, cuda or cpu.")] = "auto",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the table here. Default: where `--paths …=auto` finds it."),
    ] = None,
    json: JsonOpt = False,
) -> None:
    """Measure which path is fastest at each boundary, and write the table that the path `auto` follows.

    Real ranks: torchrun --no-python --nproc-per-node 2 fusionscope tune MODEL --tp 2. Without torchrun, ranks beyond
    the first are emulated on one GPU.

    Example: fusionscope tune glm-5.3-flash --tp 4
    """
    from fusionscope.cli import output
    from fusionscope.profiler.capture.tuned import tuned

    with output.progress("tuning") as progress:
        found = tuned(model, tp, tokens, device, out, progress)
    if found.rank == 0:
        emit(json, found.document(), lambda: render(found))


def render(found: Any) -> RenderableType:
    """The times, the gates, and where the table lies."""
    from rich.console import Group
    from rich.text import Text

    from fusionscope.cli import output

    paths = list(dict.fromkeys(path for one in found.measured for path in one.row.us))
    rows = [
        (
            one.row.boundary,
            str(one.row.hidden),
            str(one.row.tp),
            str(one.row.tokens),
            *(f"{one.row.us[path]:.2f}" if path in one.row.us else "" for path in paths),
        )
        for one in found.measured
    ]
    head = ("boundary", "hidden", "tp", "tokens", *(f"{path} us" for path in paths))
    notes = [*found.gates, *(f"{path} did not run: {why}" for path, why in found.declined().items())]
    notes += ["Ended early: the table holds what was measured before."] if found.early else []
    return Group(
        output.table(f"Time of one site on {found.table.gpu}{found.label}", head, rows, right=head[1:]),
        *(Text(note) for note in notes),
        Text(f"Written to {found.path}."),
    )
