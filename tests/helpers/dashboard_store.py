"""A store with good, odd and broken runs, the dashboard over it, and a page of a browser that is watched."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import literal_store as literal
import pandas as pd
from literal_traces import FUSED_RUN, SPLIT, kernels

from fusionscope.dashboard import serve
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Store
from fusionscope.profiler.trace import Trace, table

#: Names of runs and kernels as somebody hostile would choose them.
SCRIPT = "<script>document.title='taken'</script>"
FORMULA = "=HYPERLINK(1)"


def fill(folder: Path) -> Store:
    """The literal runs, one named like a script with such kernels, one like a formula, two ranks, one broken."""
    literal.fill(folder)
    store = Store(folder)
    named: dict[str, Any] = {"model": SCRIPT, "labels": ["cpu"], "machine": {"gpu": SCRIPT}, "tp": 2, "batch": 1}
    hostile = kernels([[(SCRIPT, 0, 10_000), *SPLIT[1:3], (FORMULA, 16_000, 9_000)]] * 3)
    store.save(RunInfo(name="<script>", **named), Trace(kernels=hostile))
    store.save(RunInfo(name=FORMULA, model=FORMULA), Trace(kernels=kernels([FUSED_RUN])))
    two = [kernels([SPLIT] * 3), kernels([SPLIT] * 3).assign(rank=1).astype({"rank": "int32"})]
    plain = [part.astype({c: "object" for c in ("name", "raw_name", "kind")}) for part in two]
    store.save(
        RunInfo(name="ranks", world_size=2), Trace(kernels=table("kernels", pd.concat(plain, ignore_index=True)))
    )
    broken = folder / "20260101-000000-bad000"
    broken.mkdir()
    (broken / "run.json").write_text("{", encoding="utf-8")
    return store


def serving(store: Store) -> Iterator[str]:
    """Serve a store on a free port for as long as the caller looks."""
    made = serve.server(store, port=0)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield serve.url(made).rstrip("/")
    made.shutdown()
    made.server_close()
    thread.join(10)


def watched(browser: Any, address: str) -> tuple[Any, list[str]]:
    """A fresh page of 1280 x 800, and what it complains of: its console, failed requests, requests to elsewhere."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light")
    context.set_default_timeout(40_000)
    page, complaints = context.new_page(), []
    page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("response", lambda r: complaints.append(f"{r.status} {r.url}") if r.status >= 400 else None)
    own = (address, "data:", "blob:")
    page.on("request", lambda r: None if r.url.startswith(own) else complaints.append(f"left for {r.url}"))
    return page, complaints
