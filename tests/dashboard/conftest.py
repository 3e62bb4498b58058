"""A store with good, odd and broken runs, the dashboard over it, and a browser where there is one."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from dashboard_store import fill

from fusionscope.dashboard import serve
from fusionscope.dashboard.library import Library
from fusionscope.profiler.store import Store

SHARED = Path(__file__).parents[3] / "shared" / "samples"


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """That store; tests only read it."""
    return fill(tmp_path_factory.mktemp("dashboard") / "store")


@pytest.fixture(scope="session")
def library(store: Store) -> Library:
    """The runs as the pages see them."""
    return Library(store)


@pytest.fixture(scope="session")
def address(store: Store) -> Iterator[str]:
    """Where the dashboard over that store is served."""
    yield from serving(store)


def serving(store: Store) -> Iterator[str]:
    """Serve a store on a free port for as long as the caller looks."""
    made = serve.server(store, port=0)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield serve.url(made).rstrip("/")
    made.shutdown()
    made.server_close()
    thread.join(10)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless browser; tests that need one are skipped where none is installed."""
    api = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium on the PATH")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Seen:
    """A page of the browser with what its console complained of."""

    page: Any
    address: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> Any:
        """Go to a path of the dashboard and wait until its page is there."""
        self.page.goto(self.address + path)
        self.page.wait_for_selector("main h1")
        return self.page


@pytest.fixture
def seen(chromium: Any, address: str) -> Iterator[Seen]:
    """A fresh page of 1280 x 800; at the end no error may have been on its console, and no request may have failed."""
    context = chromium.new_context(viewport={"width": 1280, "height": 800}, accept_downloads=True, color_scheme="light")
    context.set_default_timeout(40_000)
    made = Seen(context.new_page(), address)
    made.page.on("console", lambda m: made.complaints.append(m.text) if m.type in ("error", "warning") else None)
    made.page.on("pageerror", lambda error: made.complaints.append(str(error)))
    made.page.on("response", lambda r: made.complaints.append(f"{r.status} {r.url}") if r.status >= 400 else None)
    made.page.on(
        "request",
        lambda r: None if r.url.startswith((address, "data:", "blob:")) else made.complaints.append(f"left: {r.url}"),
    )
    yield made
    context.close()
    assert made.complaints == []


@pytest.fixture(scope="session")
def samples() -> Path:
    """The shared sample traces; a test that needs them is skipped where they are not."""
    if not SHARED.is_dir():
        pytest.skip("the sample traces (../shared/samples) are not here")
    return SHARED
