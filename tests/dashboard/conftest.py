"""A store with good, odd and broken runs, the dashboard over it, and a browser where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from dashboard_store import fill, serving, watched

from fusionscope.dashboard.library import Library
from fusionscope.profiler.store import Store


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
    """A page of the browser and where the dashboard is."""

    page: Any
    address: str

    def open(self, path: str) -> Any:
        """Go to a path of the dashboard and wait until its page is there."""
        self.page.goto(self.address + path)
        self.page.wait_for_selector("main h1")
        return self.page


@pytest.fixture
def seen(chromium: Any, address: str) -> Iterator[Seen]:
    """A fresh page; at the end no error may have been on its console, and no request may have failed or left."""
    page, complaints = watched(chromium, address)
    yield Seen(page, address)
    page.context.close()
    assert complaints == []
