"""`fusionscope tag`."""

from __future__ import annotations

from typing import Annotated

import typer

from fusionscope.cli.common import JsonOpt, RunArg, StoreOpt, emit, open_store


def tag(
    run: RunArg,
    tags: Annotated[list[str], typer.Argument(metavar="NAME...", help="Tags, such as main.")],
    remove: Annotated[bool, typer.Option("--remove", help="Take the tags away.")] = False,
    store: StoreOpt = None,
    json: JsonOpt = False,
) -> None:
    """Give a run tags: every command then takes `tag:NAME` as the newest run that has it.

    Example: fusionscope tag split main
    """
    from rich.text import Text

    info = open_store(store).tag(run, tags, remove)
    emit(
        json,
        {"run": info.id, "tags": info.tags},
        lambda: Text(f"Run {info.id} has the tags: {', '.join(info.tags) or 'none'}"),
    )
