"""How long the dashboard keeps a person waiting: the first page over 500 runs, and two forwards of 2,000 launches.

    python benchmarks/dashboard_speed.py [--runs 500] [--launches 2000] [--repeat 5] [--out FILE.json]
        [--against FOLDER]

A headless Chromium opens each page as a person does, against a server of its own that has not seen these runs; the time
runs until the last plot and row are there. `cold` is a link opened with an empty cache (the browser reads 8 MB of
scripts), `clicked` the step from the page of all runs to the comparison, `again` the same link once more, `server` the
page's callback alone. Wanted on two cores: the first page in 2 s cold, the comparison in 1.5 s when it is clicked.
With --against, only the comparison is opened cold, in turn by this version and by that whose `fusionscope` package
lies in FOLDER: on a machine that others use, the ratio of the two holds where seconds do not. It is kept beside what
--out has.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from playwright.sync_api import Browser, sync_playwright

from fusionscope.dashboard.app import render
from fusionscope.dashboard.library import Library
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Store
from fusionscope.profiler.trace import Trace, table

DRAWN = (
    "([p, r]) => document.querySelectorAll('.js-plotly-plot .subplot.xy').length >= p"
    " && document.querySelectorAll('.ag-center-cols-container .ag-row').length >= r"
)
GOALS_S = {"runs": 2.0, "compare": 1.5}
REPLAYS = 12
#: A dashboard loads its libraries beside serving; a person opens a page some seconds after starting it.
SETTLE_S = 4.0
AR, NORM, FUSED = "one_shot_all_reduce_kernel", "fused_add_rmsnorm_kernel", "all_reduce_pull_norm_kernel"


def forward(launches: int, fused: bool) -> Trace:
    """Replays of a decode forward: in every ten launches one all-reduce and one norm, or one fused kernel for both."""
    rng = np.random.default_rng(1)
    names, durations = [], []
    for place in range(launches):
        at = place % 10
        if at == 8:
            names.append(FUSED if fused else AR)
            durations.append(3_800 if fused else 2_900)
        elif at == 9 and not fused:
            names.append(NORM)
            durations.append(1_700)
        elif at != 9:
            names.append(f"gemm_kernel_{at}")
            durations.append(4_000 + 300 * at)
    count = len(names)
    parts = []
    for replay in range(REPLAYS):
        duration = np.asarray(durations) + rng.integers(-40, 40, count)
        start = np.cumsum(duration + 450) - duration + replay * 30_000_000
        parts.append(
            pd.DataFrame(
                {
                    "rank": 0, "process": 1, "device": 0, "stream": 7, "kind": "kernel", "name": names,
                    "raw_name": names, "start_ns": start, "duration_ns": duration, "correlation": replay, "graph": 3,
                    "node": np.arange(count), "replay": replay,
                }
            )
        )  # fmt: skip
    times = pd.DataFrame({"duration_ns": rng.integers(9_990_000, 10_010_000, 80), "block": np.repeat(np.arange(8), 10)})
    timings = table("timings", times.assign(rank=0, process=1, arm="", source="untraced"))
    return Trace(kernels=table("kernels", pd.concat(parts, ignore_index=True)), timings=timings)


def fill(store: Store, runs: int, launches: int) -> tuple[str, str]:
    """The two forwards, and copies of a small run until there are so many; ids of the two."""
    known: dict[str, Any] = {
        "model": "m", "tp": 4, "batch": 4, "machine": {"gpu": "GPU"}, "labels": ["built-in model", "emulated ranks"],
    }  # fmt: skip
    ids = [
        store.save(RunInfo(name=name, **known), forward(launches, name == "fused")).info.id
        for name in ("split", "fused")
    ]
    small = store.save(RunInfo(name="small", **known), forward(20, False)).path
    for place in range(runs - 3):
        shutil.copytree(small, store.root / f"20260101-{place:06d}-{place:06x}")
    return ids[0], ids[1]


def opened(browser: Browser, url: str, plots: int, rows: int) -> tuple[float, float]:
    """Seconds to open a page with an empty cache, and again."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    times = []
    for _ in range(2):
        page.goto("about:blank")
        began = time.perf_counter()
        page.goto(url, wait_until="commit")
        page.wait_for_function(DRAWN, arg=[plots, rows])
        times.append(time.perf_counter() - began)
    context.close()
    return times[0], times[1]


def clicked(browser: Browser, url: str, search: str) -> float:
    """Seconds from the click on "Compare" on the page of all runs, some seconds after that came, to the last plot."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(url + "/")
    page.wait_for_function(DRAWN, arg=[0, 10])
    page.wait_for_timeout(1000 * SETTLE_S)
    began = time.perf_counter()
    page.evaluate(
        "href => { history.pushState({}, '', href); dispatchEvent(new CustomEvent('_dashprivate_pushstate')); }",
        "/compare" + search,
    )
    page.wait_for_function(DRAWN, arg=[3, 3])
    found = time.perf_counter() - began
    page.close()
    return found


def zoomed(browser: Browser, url: str) -> float:
    """Seconds that a zoom of the timeline takes in the browser."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(url)
    page.wait_for_selector("#plot-aligned .subplot.xy")
    script = """async () => {
      const plot = document.querySelector('#plot-aligned .js-plotly-plot'), began = performance.now();
      await Plotly.relayout(plot, {'xaxis.range': [2000, 2200]});
      return (performance.now() - began) / 1000;
    }"""
    found = float(page.evaluate(script))
    page.close()
    return found


def served(library: Library, path: str, search: str) -> tuple[float, float]:
    """Seconds of a page's callback, the first time and again."""
    times = []
    for _ in range(2):
        began = time.perf_counter()
        json.dumps(render(library, path, search)[0].to_plotly_json(), default=str)
        times.append(time.perf_counter() - began)
    return times[0], times[1]


def in_turn(browser: Browser, store: str, search: str, other: Path, repeat: int) -> dict[str, Any]:
    """Seconds of the comparison with an empty cache, of another version and of this one."""
    times: dict[str, list[float]] = {"before": [], "after": []}
    for _ in range(repeat):
        for name, path in (("before", str(other.resolve())), ("after", "")):
            with served_by_process(store, path) as url:
                times[name].append(opened(browser, f"{url}/compare{search}", 3, 3)[0])
    before, after = (statistics.median(times[name]) for name in ("before", "after"))
    rounded = {f"{name}_cold_s": [round(t, 3) for t in values] for name, values in times.items()}
    return {**rounded, "ratio_of_medians": round(after / before, 3), "load_1min": round(os.getloadavg()[0], 2)}


def main() -> None:
    """Measure, print and store."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=500)
    options.add_argument("--launches", type=int, default=2000)
    options.add_argument("--repeat", type=int, default=5)
    options.add_argument("--out", type=Path)
    options.add_argument("--against", type=Path, metavar="FOLDER", help="of another version, as on PYTHONPATH")
    asked = options.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("No chromium on the PATH: install one (apt-get install chromium).")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        store = Store(Path(folder))
        base, candidate = fill(store, asked.runs, asked.launches)
        compared = f"?base={base}&candidate={candidate}"
        pages = {"runs": ("/", "", 0, 10), "compare": ("/compare", compared, 3, 3)}
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        if asked.against:
            ratio = in_turn(browser, folder, compared, asked.against, asked.repeat)
            browser.close()
            known = json.loads(asked.out.read_text()) if asked.out and asked.out.exists() else {}
            write({**known, "compare_in_turn": ratio}, asked.out)
            return
        found: dict[str, Any] = {}
        for name, (path, search, plots, rows) in pages.items():
            times: dict[str, list[float]] = {"cold": [], "again": [], "clicked": []}
            for _ in range(asked.repeat):
                with served_by_process(folder) as url:
                    first, again = opened(browser, url + path + search, plots, rows)
                    times["cold"].append(first)
                    times["again"].append(again)
                    if name == "compare":
                        found["zoom_s"] = round(zoomed(browser, url + path + search), 3)
                if name == "compare":
                    with served_by_process(folder) as url:
                        times["clicked"].append(clicked(browser, url, search))
            server = served(Library(store), path, search)
            found[name] = {
                "goal_s": GOALS_S[name],
                **{f"{key}_s": [round(t, 3) for t in values] for key, values in times.items() if values},
                **{f"{key}_median_s": round(statistics.median(v), 3) for key, v in times.items() if v},
                "server_first_s": round(server[0], 3),
                "server_again_s": round(server[1], 3),
            }
        version = browser.version
        browser.close()
    found |= {
        "runs_stored": asked.runs,
        "launches": asked.launches,
        "replays": REPLAYS,
        "cpus": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "chromium": version,
        # On a machine that others use too, `chrt -r 1 python …` gives the measurement the processors first.
        "scheduling": {os.SCHED_OTHER: "normal", os.SCHED_RR: "real time"}.get(os.sched_getscheduler(0), "other"),
        "method": "each number is of a server process of its own that has not seen these runs; cold: a link opened "
        "with an empty browser cache, until the last plot and row; again: that link once more; clicked: from the page "
        f"of all runs, {SETTLE_S:g} s after it came, to the last plot and row; server: the callback alone.",
    }
    write(found, asked.out)


def write(found: dict[str, Any], out: Path | None) -> None:
    """Print the results, and store them where a file was named."""
    text = json.dumps(found, indent=2) + "\n"
    if out:
        out.write_text(text, encoding="utf-8")
    print(text)


class served_by_process:
    """A dashboard of its own process on a free port; `path` is where another version of the packages lies."""

    def __init__(self, store: str, path: str = "") -> None:
        self.environment = os.environ | ({"PYTHONPATH": path} if path else {})
        code = "import sys; from fusionscope.cli.main import main; sys.exit(main(sys.argv[1:]))"
        self.command = [sys.executable, "-c", code, "dashboard", "--port", "0", "--store", store, "--json"]

    def __enter__(self) -> str:
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True, env=self.environment)
        assert self.process.stdout is not None
        told = ""
        while not told.endswith("}\n"):
            told += self.process.stdout.readline()
        time.sleep(SETTLE_S)
        return str(json.loads(told)["url"]).rstrip("/")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(20)


if __name__ == "__main__":
    main()
