"""Takes the pictures of docs/dashboard.md from the dashboard itself, with the runs that ship with the package.

    python docs/take_screenshots.py

It needs playwright and a chromium on the PATH, and writes docs/images/*.png.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from fusionscope.dashboard import serve
from fusionscope.profiler.store import Store

FOLDER = Path(__file__).parent / "images"


@dataclass(frozen=True)
class Picture:
    """A page, what must be drawn on it, and the part that is shown (1280 px wide, from the top where none is named)."""

    name: str
    path: str
    plots: int
    height: int = 860
    part: str = ""
    scheme: str = "light"


# fmt: off
PICTURES = (
    Picture("run", "/run/example", 3),
    Picture("compare", "/compare?base=example&candidate=example-fused", 3, height=1010),
    Picture(
        "timelines", "/compare?base=example&candidate=example-fused&site=mhc_post%3A44", 3, part="#timelines",
        scheme="dark",
    ),
    Picture("estimate", "/estimate/example?how=run&from=example-fused", 1, height=980),
    Picture("summary", "/summary?base=example&candidate=example-fused", 0, height=740),
)
# fmt: on


def take(browser: Browser, address: str, picture: Picture) -> None:
    """One picture."""
    page = browser.new_page(
        viewport={"width": 1280, "height": picture.height},
        color_scheme=picture.scheme,  # type: ignore[arg-type]
    )
    page.goto(address + picture.path)
    page.wait_for_selector("main h1")
    page.wait_for_function(
        "plots => document.querySelectorAll('.js-plotly-plot .subplot.xy').length >= plots", arg=picture.plots
    )
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(400)
    clip = None
    if picture.part:
        page.locator(picture.part).scroll_into_view_if_needed()
        box = page.locator(picture.part).bounding_box()
        assert box is not None
        clip = {"x": 0.0, "y": box["y"] - 20, "width": 1280.0, "height": box["height"] + 40}
    page.screenshot(path=FOLDER / f"{picture.name}.png", clip=clip)  # type: ignore[arg-type]
    page.close()


def main() -> None:
    """Serve the examples and take every picture."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("No chromium on the PATH: install one (apt-get install chromium).")
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as store, sync_playwright() as driver:
        made = serve.server(Store(store), port=0)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for picture in PICTURES:
            take(browser, serve.url(made).rstrip("/"), picture)
        browser.close()
        made.shutdown()


if __name__ == "__main__":
    main()
