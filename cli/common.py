"""Options that several commands share, and what every command does with its answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.analysis.ruleset import Source
    from fusionscope.profiler.store import Store

RunArg = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run: its id, a unique prefix of it, its name, tag:NAME (the newest with that tag), a path to its "
        "folder, or a packed run (.tar, .zip) here or at a URL.",
    ),
]
StoreOpt = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="DIR",
        help="Folder or URL (s3://…) of the runs. Default: $FUSIONSCOPE_STORE, else a folder in your data directory.",
    ),
]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]
RankOpt = Annotated[
    int | None,
    typer.Option("--rank", min=0, metavar="R", help="The rank to analyse. Default: the lowest that was traced."),
]
ForwardOpt = Annotated[
    str,
    typer.Option(
        "--forward",
        metavar="KIND",
        help="The kind of forward to analyse, as `attribute` lists them. Default: the one with the most kernel time.",
    ),
]
RulesOpt = Annotated[
    list[Path] | None,
    typer.Option(
        "--rules",
        metavar="FILE",
        help="A TOML file with your own roles and boundaries, or `attention`; may be repeated. "
        "Default: $FUSIONSCOPE_RULES.",
        envvar=None,
    ),
]
BoundariesOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--boundary",
        metavar="KIND=A;B",
        help="A boundary of your own, as roles or kernel-name patterns in order: rope_kv=rotary_embedding;store_kv.",
    ),
]
SitesOpt = Annotated[
    str,
    typer.Option("--sites", metavar="FILTER", help="Narrow the sites, as in `mhc_post:ffn_exit` or `layer>=3`."),
]


def open_store(store: str | Path | None) -> Store:
    """The store that `--store` names, or the default one."""
    from fusionscope.profiler.remote_store import open_store as opened

    return opened(store)


def rule_sources(rules: list[Path] | None, boundaries: list[str] | None = None) -> list[Source]:
    """The files given with `--rules`, else those of $FUSIONSCOPE_RULES (separated as $PATH is), and `--boundary`."""
    import os

    from fusionscope.analysis.ruleset import AdHoc

    files = rules or [Path(part) for part in os.environ.get("FUSIONSCOPE_RULES", "").split(os.pathsep) if part]
    return [*files, *(AdHoc(text) for text in boundaries or [])]


def emit(as_json: bool, payload: Any, render: Callable[[], RenderableType]) -> None:
    """Print the answer: `payload` as JSON, or what `render` returns as a table for people."""
    from fusionscope.cli import output

    if as_json:
        output.write_json(payload)
    else:
        output.show(render())


def settings(pairs: list[str] | None) -> dict[str, str]:
    """The values of `--set KEY=VALUE`.

    Raises FusionScopeError for a text without a key and an equals sign.
    """
    from fusionscope.profiler.errors import FusionScopeError

    values = {}
    for pair in pairs or []:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise FusionScopeError(f"--set takes KEY=VALUE, as in --set branch=main; {pair!r} is not that.")
        values[key] = value
    return values
