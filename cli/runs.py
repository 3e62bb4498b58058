"""`fusionscope runs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fusionscope.cli.common import JsonOpt, StoreOpt, emit, open_store

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.profiler.store import Listed


def runs(
    tag: Annotated[str, typer.Option("--tag", metavar="NAME", help="Only the runs with this tag.")] = "",
    store: StoreOpt = None,
    json: JsonOpt = False,
) -> None:
    """List the stored runs, oldest first; the example run that ships with the package comes last.

    Example: fusionscope runs --store ./runs --tag main
    """
    opened = open_store(store)
    listed = [item for item in opened.list() if not tag or (item.info is not None and tag in item.info.tags)]
    payload = {"store": opened.place, "runs": [row(item) for item in listed]}
    emit(json, payload, lambda: render(opened.place, listed))


def row(item: Listed) -> dict[str, Any]:
    """One run as JSON; a run that cannot be opened has only its id, path and error."""
    if item.info is None:
        return {"run": item.id, "path": str(item.path), "error": item.error}
    info = item.info
    return {
        "run": item.id,
        "name": info.name,
        "created": info.created,
        "model": info.model,
        "tp": info.tp,
        "batch": info.batch,
        "context": info.context,
        "profiler": info.profiler,
        "labels": info.labels,
        "tags": info.tags,
        "path": str(item.path),
        "error": None,
    }


def render(root: str, listed: list[Listed]) -> RenderableType:
    """The same for people."""
    from rich.text import Text

    from fusionscope.cli import output

    if not listed:
        return Text(f"No runs in {root}. Record one: fusionscope capture --model glm-5.3-flash --tp 4")
    rows: list[tuple[str, ...]] = []
    for item in listed:
        if item.info is None:
            rows.append((item.id, "", "", "", "", "", "", item.error, ""))
            continue
        info = item.info
        shape = (str(value) if value >= 0 else "?" for value in (info.tp, info.batch))
        created = info.created[:16].replace("T", " ")
        told = (info.profiler, ", ".join(info.labels), ", ".join(info.tags))
        rows.append((item.id, info.name, created, info.model or "?", *shape, *told))
    columns = ("run", "name", "created (UTC)", "model", "tp", "batch", "profiler", "labels", "tags")
    return output.table(f"Runs in {root}", columns, rows, right=("tp", "batch"))
