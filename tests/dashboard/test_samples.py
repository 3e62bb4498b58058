"""Pages of real traces (../shared/samples): other vendors, several ranks, piecewise graphs, graph mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dashboard_store import serving, watched

from fusionscope.analysis.ranks import ranks
from fusionscope.dashboard import app
from fusionscope.dashboard.figures import ranks as ranks_drawn
from fusionscope.dashboard.library import Library
from fusionscope.profiler.imported import run_info
from fusionscope.profiler.importing import import_files
from fusionscope.profiler.store import Store

SHARED = Path(__file__).parents[3] / "shared" / "samples"
#: Name of the run -> its files, and what its page must say.
RUNS: dict[str, tuple[list[str], str]] = {
    "sglang-mi300x": (["kineto_mi300x_sglang_decode.json.gz"], "Launches abut"),
    "vllm-piecewise": (["kineto_mi300x_vllm_piecewise.json.gz"], "This forward has no site of a known kind"),
    "skew": (["h200_tp2_skew/tp2.nsys.sqlite"], "rank 1"),
    "split": (["h200_ar_norm/split.nsys.sqlite"], "ar_norm"),
    "fused": (["h200_ar_norm/fused.nsys.sqlite"], "ar_norm"),
    "rank-1-of-2": (["kineto_v100_graphs_rank1of2.json.gz"], "incomplete"),
    "graph-mode": (["synthetic_nsys_2gpu_graph_mode.sqlite"], "recorded in graph mode"),
}

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the sample traces (../shared/samples) are not here")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    store = Store(tmp_path_factory.mktemp("samples"))
    for name, (files, _) in RUNS.items():
        paths = [SHARED / file for file in files]
        trace = import_files(paths)
        store.save(run_info(paths, trace, name=name), trace)
    return Library(store)


@pytest.mark.parametrize("name", RUNS)
def test_the_page_of_a_real_trace_says_what_is_special_of_it(library: Library, name: str) -> None:
    made, _ = app.render(library, f"/run/{name}", "")
    shown = str(made.to_plotly_json())
    assert RUNS[name][1] in shown
    assert "A fault of FusionScope" not in shown


def test_an_imported_pair_is_compared_and_says_that_it_is_imported(library: Library) -> None:
    made, _ = app.render(library, "/compare", "?base=split&candidate=fused")
    shown = str(made.to_plotly_json())
    assert "ar_norm fired at 45 of 45 sites" in shown
    assert "An imported run does not say all that was chosen" in shown


def test_the_wait_of_each_rank_stands_on_its_page(library: Library) -> None:
    shown = str(app.render(library, "/run/skew", "")[0].to_plotly_json())
    # 1,199,996 ns of transfer and 2,481,360 ns of wait on rank 0, 47,583 ns on rank 1, over all replays.
    assert all(part in shown for part in ("1,200.0", "2,481.4", "47.6"))
    skew = library.analysed("skew")
    transfer, wait = ranks_drawn.waiting(ranks(skew.run, skew.rules)).data
    assert list(transfer.x) == [1199.996, 1199.996] and list(wait.x) == [2481.36, 47.583]


def test_real_traces_are_drawn_in_a_browser(library: Library, chromium: Any) -> None:
    for address in serving(library.store):
        page, complaints = watched(chromium, address)
        for name in ("sglang-mi300x", "vllm-piecewise", "skew"):
            page.goto(f"{address}/run/{name}")
            page.wait_for_function("document.querySelectorAll('.js-plotly-plot .subplot.xy').length >= 2")
        page.goto(f"{address}/compare?base=split&candidate=fused")
        page.wait_for_function("document.querySelectorAll('.js-plotly-plot .subplot.xy').length >= 3")
        page.context.close()
        assert complaints == []
