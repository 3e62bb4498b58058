"""The dashboard in a headless browser: every fixture page ends with a silent console and no request elsewhere."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from dashboard_store import serving, watched
from literal_traces import SPLIT, kernels

from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Store
from fusionscope.profiler.trace import Trace

COMPARED = "/compare?base=example&candidate=example-fused"
PAGES = {
    "runs": "/",
    "run": "/run/example",
    "compare": COMPARED,
    "estimate": "/estimate/example",
    "accuracy": "/accuracy",
    "summary": "/summary?base=example&candidate=example-fused",
}
#: Plots and grids that each page draws.
DRAWN = {"runs": (0, 1), "run": (3, 1), "compare": (3, 1), "estimate": (1, 0), "accuracy": (1, 0), "summary": (0, 0)}


def drawn(page: Any, plots: int, grids: int = 0) -> None:
    """Wait until so many plots and grids are there, and every grid has its header."""
    page.wait_for_function(
        "([p, g]) => document.querySelectorAll('.js-plotly-plot .subplot.xy').length >= p"
        " && document.querySelectorAll('.ag-row').length >= g"
        " && [...document.querySelectorAll('.ag-header-row')].every(row => row.children.length)",
        arg=[plots, grids],
    )


@pytest.mark.parametrize("name", PAGES)
def test_every_page_renders_in_silence_and_is_accessible(seen: Any, name: str) -> None:
    page = seen.open(PAGES[name])
    drawn(page, *DRAWN[name])
    page.wait_for_function("document.title.endsWith(' - FusionScope')")
    assert page.locator("nav a[aria-current=page]").count() == 1
    assert "emulated ranks" in page.locator("main").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    # A grid far below the window is not laid out, and axe sees a header without cells.
    page.add_style_tag(content="* { content-visibility: visible !important; }")
    assert serious(page, {"rules": {"color-contrast": {"enabled": False}}}) == {}
    if name != "runs":
        # Cells that a wide grid keeps out of sight lie outside axe's own grid, and it gives up; "runs" has none.
        page.add_style_tag(content=".fs-grid { display: none !important; }")
    contrast = {"runOnly": ["color-contrast"]}
    assert serious(page, contrast) == {}
    page.get_by_role("button", name="Switch between light and dark").click()
    page.wait_for_selector(":root[data-mantine-color-scheme=dark]")
    assert serious(page, contrast) == {}


def serious(page: Any, options: dict[str, Any]) -> dict[str, list[str]]:
    """What axe-core finds serious or critical, by rule. A rule that gave up, or nothing that passed, is no answer."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    # Thousands of bars hold no text, and take axe seconds to look at.
    found = axe.run(page, context={"exclude": [[".barlayer"]]}, options=options).response
    assert "error-occurred" not in str(found["incomplete"]) and found["passes"]
    bad = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
    return {v["id"]: [n["html"][:200] for n in v["nodes"]] for v in bad}


def test_the_search_filters_runs_and_the_link_shows_the_same(seen: Any) -> None:
    page = seen.open("/")
    drawn(page, 0, 8)
    page.get_by_role("searchbox").fill("example-fused")
    page.wait_for_function("document.querySelectorAll('.ag-center-cols-container .ag-row').length === 1")
    page.wait_for_url("**/?q=example-fused")
    page.goto(page.url)
    page.wait_for_function("document.querySelectorAll('.ag-center-cols-container .ag-row').length === 1")
    page.get_by_role("link", name="example-fused").click()
    page.wait_for_url("**/run/example-fused")
    page.get_by_role("heading", name="example-fused", level=1).wait_for()


def test_two_selected_runs_are_compared(seen: Any) -> None:
    page = seen.open("/?q=example")
    drawn(page, 0, 2)
    for box in page.locator(".ag-selection-checkbox input").all()[:2]:
        box.check()
    page.get_by_role("link", name="Compare 2 runs").click()
    page.wait_for_url("**/compare?base=example&candidate=example-fused")
    page.get_by_text("mhc_post fired at 90 of 90 sites").wait_for()


def view(page: Any, plot: str = "plot-timeline") -> list[float]:
    found: list[float] = page.evaluate(
        f"document.querySelector('#{plot} .js-plotly-plot')._fullLayout.xaxis.range.map(Number)"
    )
    return found


def test_a_page_is_made_once_and_again_when_a_control_changes(seen: Any) -> None:
    made: list[str] = []
    seen.page.on("response", lambda r: made.append(r.url) if "content.children" in str(r.request.post_data) else None)
    page = seen.open(COMPARED)
    drawn(page, 3, 1)
    page.wait_for_timeout(300)
    assert len(made) == 1 and page.url.endswith(COMPARED)
    margin = page.get_by_label("Margin (% of the step)")
    margin.fill("3")
    page.wait_for_url("**" + COMPARED + "&margin=3")
    page.get_by_text("below margin").first.wait_for()
    assert len(made) == 2
    page.go_back()
    page.get_by_text("worth merging").first.wait_for()


@pytest.mark.parametrize("name", ["compare", "summary"])
def test_plotly_is_fetched_beside_the_page_that_needs_it(seen: Any, name: str) -> None:
    """It is the largest script: who waits for it after the server's answer waits longest."""
    page = seen.open(PAGES[name])
    drawn(page, *DRAWN[name])
    times = page.evaluate("performance.getEntriesByType('resource').map(r => [r.name, r.startTime, r.responseEnd])")
    asked, answered = next((start, end) for url, start, end in times if "_dash-update-component" in url)
    fetched = [start for url, start, _ in times if "/plotly.min.js" in url]
    if name == "summary":
        # It draws nothing, and reads plotly for the next page when its own has long been there.
        assert all(start > asked + 2000 for start in fetched)
    else:
        assert fetched and min(fetched) < answered
        assert page.evaluate("document.querySelectorAll('script[src*=\"plotly.min.js\"]').length") == 1


def test_plotly_is_asked_for_again_where_dash_says_that_it_lies(chromium: Any, address: str) -> None:
    page, complaints = watched(chromium, address)
    asked: list[str] = []

    def first_is_missing(route: Any) -> None:
        asked.append(route.request.url)
        route.abort() if len(asked) == 1 else route.continue_()

    page.route("**/plotly.min.js", first_is_missing)
    page.goto(address + PAGES["summary"])
    page.wait_for_function("Boolean(window.Plotly && window.Plotly.newPlot)")
    page.context.close()
    assert len(asked) == 2 and len(complaints) == 1 and "ERR_FAILED" in complaints[0]


def test_a_site_is_zoomed_to_stepped_through_and_shared(seen: Any) -> None:
    page = seen.open("/run/example")
    drawn(page, 3)
    whole = view(page)
    assert whole[1] - whole[0] > 8_000
    page.get_by_role("button", name="The next site").click()
    page.wait_for_url(re.compile(r"site=moe_finalize%3A0"))
    wait_for_view(page, lambda v: v[1] - v[0] < 200)
    first = view(page)
    page.get_by_role("button", name="The next site").click()
    page.wait_for_url(re.compile(r"site=moe_finalize%3A1"))
    wait_for_view(page, lambda v: v[0] > first[0])
    second = view(page)
    page.goto(page.url)
    drawn(page, 3)
    assert view(page) == pytest.approx(second, abs=0.01)
    # Dragging over the plot zooms further without asking the server.
    page.locator("#plot-timeline").scroll_into_view_if_needed()
    box = page.locator("#plot-timeline .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 20, steps=4)
    page.mouse.up()
    wait_for_view(page, lambda v: v[1] - v[0] < 0.5 * (second[1] - second[0]))


def wait_for_view(page: Any, right: Any) -> None:
    for _ in range(200):
        if right(view(page)):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"the view stayed {view(page)}")


def test_timelines_are_aligned_at_a_site(seen: Any) -> None:
    page = seen.open(COMPARED + "&site=mhc_post%3A45")
    drawn(page, 3)
    assert "the candidate is moved by" in page.locator("#plot-aligned .xtitle").text_content()


def test_an_estimate_answers_its_controls_and_its_link(seen: Any) -> None:
    page = seen.open("/estimate/example")
    drawn(page, 1)
    speedup = page.get_by_label("Speed-up (x)")
    speedup.fill("4")
    speedup.press("Tab")
    page.get_by_text("4.00 x").first.wait_for()
    page.wait_for_url(re.compile(r"speedup=4"))
    page.goto(page.url)
    page.get_by_text("4.00 x").first.wait_for()
    assert page.get_by_label("Speed-up (x)").input_value() == "4"


def saved(page: Any, click: Any) -> Path:
    with page.expect_download() as waiting:
        click()
    return Path(waiting.value.path())


def test_tables_and_figures_are_saved(seen: Any) -> None:
    page = seen.open("/run/example")
    drawn(page, 3)
    table = saved(page, page.locator("#kernels").get_by_title("Download as CSV").click)
    with table.open(encoding="utf-8", newline="") as lines:
        assert sum(int(row["Launches"]) for row in csv.DictReader(lines)) == 1629
    image = saved(page, page.locator("#boundaries").get_by_role("button", name="PNG").click)
    assert image.read_bytes().startswith(b"\x89PNG")
    drawing = saved(page, page.locator("#boundaries").get_by_role("button", name="SVG").click)
    text = drawing.read_text(encoding="utf-8")
    assert "<svg" in text and "mhc_post" in text


def test_a_summary_is_copied_and_saved(seen: Any) -> None:
    seen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = seen.open(PAGES["summary"])
    page.get_by_title("Copy the Markdown").click()
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    file = saved(page, page.get_by_title("Download as Markdown").click)
    assert copied == file.read_bytes().decode() and copied.startswith("### `mhc_post` fused at 90 sites")
    page.locator("summary").click()
    page.get_by_text("path mhc_post").first.wait_for()


def brightness(page: Any, where: str, what: str) -> float:
    colour = page.evaluate(f"getComputedStyle(document.querySelector('{where}')).{what}")
    return sum(float(part) for part in re.findall(r"[\d.]+", colour)[:3])


def test_dark_mode_reaches_figures_and_grids_and_lasts(seen: Any) -> None:
    page = seen.open("/run/example")
    drawn(page, 3, 1)
    places = (("body", "backgroundColor"), ("#plot-timeline .xtick text", "fill"), (".ag-row", "color"))
    before = [brightness(page, *place) for place in places]
    page.get_by_role("button", name="Switch between light and dark").click()
    page.wait_for_selector(":root[data-mantine-color-scheme=dark]")
    after = [brightness(page, *place) for place in places]
    assert before[0] > 700 > 150 > after[0]
    assert before[1] < 200 and after[1] > 550
    assert before[2] < 200 and after[2] > 550
    page.reload()
    page.wait_for_selector(":root[data-mantine-color-scheme=dark] main h1")


def test_names_like_scripts_are_text(seen: Any) -> None:
    page = seen.open("/")
    drawn(page, 0, 8)
    page.get_by_role("link", name="<script>").click()
    page.get_by_role("heading", name="<script>", level=1).wait_for()
    drawn(page, 3, 1)
    assert page.evaluate("document.title") == "taken" or page.title().endswith("FusionScope")
    assert page.title() != "taken"
    page = seen.open(f"/summary?base={quote('<script>')}&candidate=split")
    assert page.title() != "taken"


def test_a_broken_run_shows_its_error_and_the_others_work(seen: Any) -> None:
    page = seen.open("/run/20260101-000000-bad000")
    page.get_by_text("run.json is damaged").wait_for()
    page.get_by_role("link", name="Runs", exact=True).click()
    drawn(page, 0, 8)
    page.get_by_role("link", name="example", exact=True).click()
    drawn(page, 3)


def test_a_new_run_appears_without_a_restart(seen: Any, store: Store) -> None:
    page = seen.open("/?q=late")
    assert page.get_by_role("link", name="late").count() == 0
    store.save(RunInfo(name="late"), Trace(kernels=kernels([SPLIT])))
    page.reload()
    page.get_by_role("link", name="late").wait_for()


def test_five_hundred_runs_are_one_page(chromium: Any, store: Store, tmp_path: Path) -> None:
    small = store.load("once").path
    for place in range(500):
        shutil.copytree(small, tmp_path / f"20260101-{place:06d}-{place:06x}")
    for address in serving(Store(tmp_path)):
        page, complaints = watched(chromium, address)
        page.goto(address)
        drawn(page, 0, 10)
        page.get_by_text("503 runs in").wait_for()
        page.get_by_role("searchbox").fill("example-fused")
        page.wait_for_function("document.querySelectorAll('.ag-center-cols-container .ag-row').length === 1")
        page.context.close()
        assert complaints == []


def test_a_selected_run_gets_a_tag(seen: Any, store: Store) -> None:
    made = store.save(RunInfo(name="taggable"), Trace(kernels=kernels([SPLIT])))
    page = seen.open("/?q=taggable")
    page.locator(".ag-selection-checkbox input").check()
    page.get_by_label("Tag", exact=True).fill("main")
    page.get_by_role("button", name="Add tag").click()
    page.locator(".ag-row .fs-badge", has_text="main").wait_for()
    assert store.load("tag:main").info.id == made.info.id


def test_pages_are_reached_by_keyboard(seen: Any) -> None:
    page = seen.open("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for _ in range(3):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Compare"
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Compare", level=1).wait_for()
