"""Serving the dashboard from this machine to this machine."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterable

import flask
from werkzeug.serving import BaseWSGIServer, make_server

from fusionscope.analysis.ruleset import Source
from fusionscope.dashboard.app import make_app, render
from fusionscope.dashboard.library import Library
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.store import EXAMPLES, Store

HOST, PORT = "127.0.0.1", 8050
_LOCAL = ("127.0.0.1", "localhost", "::1", "[::1]")


def server(store: Store, host: str = HOST, port: int = PORT, rules: Iterable[Source] = ()) -> BaseWSGIServer:
    """A server that is bound and not yet serving (`serve_forever`); port 0 takes a free one.

    Raises FusionScopeError where the address cannot be bound.
    """
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = make_app(Library(store, rules))
    if host in _LOCAL:
        app.server.before_request(_own_names_only)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise FusionScopeError(
            f"The dashboard cannot listen on {host}:{port} ({why}): choose another with --port, "
            "or --port 0 for any free one."
        ) from error
    made = make_server(host, listening.getsockname()[1], app.server, threaded=True, fd=listening.detach())
    made.daemon_threads = True  # type: ignore[attr-defined]
    return made


def warm(store: Store, rules: Iterable[Source] = ()) -> threading.Thread:
    """Loads what the first page would wait for (libraries, templates of figures), beside the serving."""
    library = Library(store, rules)
    search = "?" + "&".join(f"{side}={name}" for side, name in zip(("base", "candidate"), EXAMPLES[:2], strict=True))
    thread = threading.Thread(target=render, args=(library, "/compare", search), daemon=True)
    thread.start()
    return thread


def url(made: BaseWSGIServer) -> str:
    """Where a browser finds a server."""
    host = f"[{made.host}]" if ":" in made.host else made.host
    return f"http://{host}:{made.port}/"


def _own_names_only() -> flask.Response | None:
    """A page of another site that resolves its name to this machine gets nothing."""
    name = flask.request.host.rsplit(":", 1)[0] if not flask.request.host.endswith("]") else flask.request.host
    if name in _LOCAL:
        return None
    return flask.Response("This dashboard answers to 127.0.0.1 and localhost only.", 403, content_type="text/plain")
