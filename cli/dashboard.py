"""`fusionscope dashboard`."""

from __future__ import annotations

from typing import Annotated

import typer

from fusionscope.cli.common import BoundariesOpt, JsonOpt, RulesOpt, StoreOpt, open_store, rule_sources


def dashboard(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")] = 8050,
    host: Annotated[
        str,
        typer.Option("--host", metavar="ADDRESS", help="Address to listen on. There is no login: leave it as it is."),
    ] = "127.0.0.1",
    store: StoreOpt = None,
    rules: RulesOpt = None,
    boundary: BoundariesOpt = None,
    json: JsonOpt = False,
) -> None:
    """Show the runs in a browser: timelines, comparisons, estimates, summaries. Ctrl-C ends it.

    Example: fusionscope dashboard --store ./runs --port 8050
    """
    from fusionscope.cli import output
    from fusionscope.dashboard.serve import server, url, warm

    opened = open_store(store)
    sources = rule_sources(rules, boundary)
    made = server(opened, host, port, sources)
    warm(opened, sources)
    runs = opened.list()
    try:
        if json:
            output.write_json({"url": url(made), "store": opened.place, "runs": len(runs)})
        else:
            print(f"{output.counted(len(runs), 'run')} of {opened.place} at {url(made)} (Ctrl-C ends it)", flush=True)
        made.serve_forever()
    finally:
        made.server_close()
