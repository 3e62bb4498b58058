"""Pages as components: what stands on them, also where something is wrong with a run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import plotly
import pytest
from literal_traces import SPLIT, kernels

from fusionscope.dashboard import app, callbacks, controls
from fusionscope.dashboard.library import Library
from fusionscope.dashboard.pages import compare, estimate, run, runs
from fusionscope.dashboard.urls import Query
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Store
from fusionscope.profiler.trace import Trace


def text(component: Any) -> str:
    """Everything that a component holds, as JSON."""
    return json.dumps(component, cls=plotly.utils.PlotlyJSONEncoder)


def page(library: Library, path: str) -> str:
    pathname, _, search = path.partition("?")
    made, title = app.render(library, pathname, "?" + search)
    assert title.endswith(" - FusionScope")
    return text(made)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/", "built-in model"),
        ("/run/example", "emulated ranks"),
        ("/run/split?rank=0&site=ar_norm:1", "ar_norm"),
        ("/compare?base=split&candidate=fused", "ar_norm fired at 2 of 2 sites, 6 of 6 replays"),
        ("/compare", "Choose a base and one or more candidates"),
        ("/estimate", "Choose the run whose boundary would be fused"),
        ("/estimate/split", "Beside plainer estimators"),
        ("/accuracy", "predicted = measured"),
        ("/summary?base=split&candidate=fused", "ar_norm"),
        ("/summary", "Choose the run before and the run after"),
        ("/nowhere", "No such page"),
        ("/run/", "No such page"),
    ],
)
def test_every_page_says_what_it_is_for(library: Library, path: str, says: str) -> None:
    assert says in page(library, path)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/run/..%2Fsplit", "'../split' is no run of this store"),
        ("/run/example?rank=7", "The run has no kernels of rank 7"),
        ("/run/example?rank=x", "rank in the address is a whole number"),
        ("/run/empty", "The run has no timed kernels at all"),
        ("/run/graph", "recorded in graph mode"),
        ("/compare?base=split&candidate=graph", "recorded in graph mode"),
        ("/compare?base=split&candidate=nothing", "'nothing' is no run of this store"),
        ("/compare?base=split&candidate=fused&margin=x", "margin in the address is a percentage"),
        ("/estimate/split?boundary=mhc_post", "This forward has 0 sites of mhc_post"),
        ("/estimate/split?how=magic", "how is one of speedup"),
        ("/estimate/split?how=run", "Choose a run in which this boundary is fused"),
        ("/summary?base=split&candidate=nothing", "'nothing' is no run of this store"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(library: Library, path: str, says: str) -> None:
    assert says in page(library, path)


def test_a_graph_mode_run_still_shows_its_step_and_labels(library: Library) -> None:
    shown = page(library, "/run/graph")
    assert "29.50 us" in shown and "graph mode" in shown and "How the run was made" in shown


def test_a_broken_run_stands_among_the_others(library: Library) -> None:
    assert "run.json is damaged" in page(library, "/")
    assert "run.json is damaged" in page(library, "/run/20260101-000000-bad000")


def test_a_fault_of_ours_takes_no_other_page_along(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "page", lambda *_: 1 / 0)
    assert "ZeroDivisionError" in page(library, "/")
    assert "built-in model" in page(library, "/run/example")


def test_runs_of_different_work_are_refused_by_field_and_compared_only_on_demand(library: Library) -> None:
    refused = page(library, "/compare?base=example&candidate=split")
    assert "model: glm-5.3-flash in the base, m in the candidate" in refused
    assert "Where the difference comes from" not in refused
    anyway = page(library, "/compare?base=example&candidate=split&anyway=1")
    assert "Compared anyway" in anyway and "Where the difference comes from" in anyway


def test_several_candidates_share_the_totals_and_one_has_the_details(library: Library) -> None:
    ids = [library.find(name).name for name in ("split", "fused", "traced")]
    shown = page(library, f"/compare?base={ids[0]}&candidate={ids[1]}&candidate={ids[2]}&show={ids[2]}")
    assert "fused: difference" in shown and "traced: difference" in shown
    assert "Did not fire: both runs launch the same kernels in the same order." in shown


def test_all_ranks_stand_beside_each_other(library: Library) -> None:
    shown = page(library, "/run/ranks")
    assert "rank 0" in shown and "rank 1" in shown and "Wait" in shown


def test_a_site_is_zoomed_to_without_sending_the_launches_again(library: Library) -> None:
    view = text(run.zoom(library, "split", Query({}), "ar_norm:1"))
    assert "[15.3" in view and "fused_add_rmsnorm" in view and "hovertext" not in view and len(view) < 2000
    assert "autorange" in text(run.zoom(library, "split", Query({}), None))


def test_the_url_names_a_site_only_if_the_forward_has_it(library: Library) -> None:
    split = library.analysed("split")
    site = controls.site_of(split, "ar_norm:1")
    assert site is not None and controls.site_key(site) == "ar_norm:1"
    assert [controls.site_of(split, key) for key in ("", None, "ar_norm:9", "x:0", "ar_norm")] == [None] * 5


def test_selected_runs_are_a_link_to_their_comparison() -> None:
    rows = [{"Id": name, "Error": ""} for name in ("a", "b", "c")]
    assert "/compare?base=a&candidate=b&candidate=c" in text(runs.selected(rows))
    one = text(runs.selected([*rows[:1], {"Id": "x", "Error": "broken"}]))
    assert "/compare" not in one and "Add tag" in one
    assert "Select runs to compare" in text(runs.selected(None))


def test_runs_are_tagged_and_found_by_their_tag(tmp_path: Path) -> None:
    store = Store(tmp_path)
    ids = [
        store.save(RunInfo(name=name, created=name), Trace(kernels=kernels([SPLIT]))).info.id for name in ("one", "two")
    ]
    library = Library(store)
    chosen = [{"Id": ident, "Error": ""} for ident in ids]  # "two" is the newer: its time sorts after "one"
    rows, said = runs.tagged(library, chosen, "main", remove=False)
    assert (said, [row["Tags"] for row in rows][:2]) == ("", ["main", "main"])
    assert library.id_of("tag:main") == ids[1]
    runs.tagged(library, chosen[1:], "main", remove=True)
    assert library.run("tag:main").info.name == "one"
    _, said = runs.tagged(library, chosen, "not a tag", remove=False)
    assert "The tag 'not a tag' cannot be asked for" in said
    _, said = runs.tagged(library, [{"Id": "example", "Error": ""}], "main", remove=False)
    assert "is not in the store" in said


def test_the_fused_time_can_come_from_a_run_that_has_it(library: Library) -> None:
    asked = estimate.Asked.of(Query({"how": ["run"], "from": ["fused"]}), "ar_norm")
    made = estimate.predict(library, library.analysed("split"), asked).made
    # 2 x (5 us in two launches with a gap of 0.1 us -> 4 us).
    assert made.traced_saving_ns == 2_200
    given = estimate.Asked.of(Query({"how": ["time"], "fused_us": ["4"], "source": ["candidate"]}), "ar_norm")
    assert estimate.predict(library, library.analysed("split"), given).made.traced_saving_ns == 2_200


def test_the_controls_of_an_estimate_answer_without_the_page(library: Library) -> None:
    names = ["boundary", "how", "speedup", "margin"]
    ids = [{"type": "param", "name": name} for name in names]
    answer, kind = callbacks.estimated(library, ["ar_norm", "speedup", 3, 1], ids, "/estimate/split", "?rank=0")
    assert "3.00 x" in text(answer) and "1.00% of the step" in text(answer)
    assert kind.endswith("fs-how-speedup")
    wrong, _ = callbacks.estimated(library, ["ar_norm", "speedup", -1, 1], ids, "/estimate/split", "")
    assert "speedup in the address is a number above 0" in text(wrong)


def test_common_sites_are_those_of_both_sides(library: Library) -> None:
    found = compare.common_sites(library.comparison("example", "example-fused"))
    kinds = Counter(key.partition(":")[0] for key in found)
    assert kinds == {"mhc_post": 90, "mhc_post_pre": 45, "moe_finalize": 42}
