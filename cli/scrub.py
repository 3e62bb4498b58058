"""`fusionscope scrub FILE|RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fusionscope.cli.common import JsonOpt, StoreOpt, emit, open_store

if TYPE_CHECKING:
    from fusionscope.profiler.runinfo import RunInfo
    from fusionscope.profiler.trace import Trace


def scrub(
    what: Annotated[str, typer.Argument(metavar="FILE|RUN", help="A profiler's trace, or a run.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="The packed run to write (.zip or .tar). Default: NAME.scrubbed.zip."
        ),
    ] = None,
    store: StoreOpt = None,
    json: JsonOpt = False,
) -> None:
    """Write a trace or a run without command lines, environment, host and user names, paths and process ids.

    The result is a packed run, which every command takes: fusionscope attribute NAME.scrubbed.zip

    Example: fusionscope scrub decode_rank0.sqlite --out decode.zip
    """
    import tempfile

    from rich.text import Text

    from fusionscope.cli import output
    from fusionscope.profiler.packed import pack
    from fusionscope.profiler.scrub import scrubbed
    from fusionscope.profiler.store import Store

    with output.progress("reading"):
        info, trace, name = _opened(what, store)
    made = scrubbed(info, trace)
    target = out or Path(f"{name}.scrubbed.zip")
    with tempfile.TemporaryDirectory(prefix="fusionscope-scrub-") as folder:
        pack(Store(folder).save(made.info, made.trace).path, target)
    names = sorted({str(n) for n in made.trace.ranges["name"].unique()})
    payload = {"written": str(target), "removed": made.removed, "model": made.info.model, "ranges": names}
    lines = [
        f"Written: {target}",
        f"Removed: {'; '.join(made.removed) or 'nothing was there'}.",
        f"Look at what stays before you share it: kernel names, {output.counted(len(names), 'name')} of ranges"
        + (f" (such as {', '.join(names[:3])})" if names else "")
        + (f", the model {made.info.model}." if made.info.model else "."),
    ]
    emit(json, payload, lambda: Text("\n".join(lines)))


def _opened(what: str, store: str | None) -> tuple[RunInfo, Trace, str]:
    from fusionscope.profiler.imported import run_info
    from fusionscope.profiler.importing import import_files
    from fusionscope.profiler.packed import is_packed

    path = Path(what)
    if path.is_file() and not is_packed(what):
        trace = import_files([path])
        return run_info([path], trace), trace, path.name.split(".")[0] or "trace"
    run = open_store(store).load(what)
    return run.info, run.trace, run.info.name or run.info.id
