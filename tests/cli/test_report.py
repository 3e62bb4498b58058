"""`fusionscope report`: one file that loads nothing, with plots, in which names of a trace are data."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from literal_traces import FUSED_RUN, SPLIT, kernels

from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Store
from fusionscope.profiler.trace import Trace

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


class Page(HTMLParser):
    """Tags with their attributes, and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside not in ("script", "style"):
            self.text += data


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "store"
    for name, launches in (("split", SPLIT), ("fused", FUSED_RUN)):
        trace = Trace(kernels=kernels([[*launches, (NASTY, 40_000, 500)]] * 3))
        Store(folder).save(RunInfo(name=name, model=NASTY, machine={"gpu": NASTY}), trace)
    return folder


@pytest.mark.parametrize(("runs", "figures"), [(["split"], 2), (["split", "fused"], 2)])
def test_a_report_loads_nothing_and_takes_names_for_data(
    fusionscope: Any, store: Path, tmp_path: Path, runs: list[str], figures: int
) -> None:
    file = tmp_path / "report.html"
    answer = fusionscope("report", *runs, "--html", file, "--store", store, "--title", NASTY)
    assert (answer.code, answer.out.strip()) == (0, str(file))
    text = file.read_text(encoding="utf-8")
    page = Page(text)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "img", "a", "object", "embed"), tag
        assert not {"src", "href", "srcset", "onerror"} & set(attributes)
    assert "<script>alert" not in text and "<img src=x" not in text
    assert sum(1 for tag, found in page.tags if "plotly-graph-div" in (found.get("class") or "")) == figures
    # The library itself, and one script a figure.
    assert sum(1 for tag, _ in page.tags if tag == "script") >= 1 + figures
    assert "<img src=x onerror=alert(1)>" in page.text


def test_a_report_says_what_the_run_holds(fusionscope: Any, tmp_path: Path) -> None:
    assert fusionscope("report", "example", "--html", tmp_path / "one.html", "--json").code == 0
    text = Page((tmp_path / "one.html").read_text(encoding="utf-8")).text
    for said in ("glm-5.3-flash", "NVIDIA H200", "1629", "mhc_post", "fused_moe_kernel", "emulated ranks"):
        assert said in text
    assert fusionscope("report", "example", "example-fused", "--html", tmp_path / "two.html").code == 0
    both = (tmp_path / "two.html").read_text(encoding="utf-8")
    assert "fused at 90 sites: 0.15 ms less" in Page(both).text and '"type":"waterfall"' in both


def test_a_report_needs_a_file_and_a_run(fusionscope: Any, tmp_path: Path) -> None:
    assert fusionscope("report", "example").code == 2
    assert fusionscope("report", "nothing", "--html", tmp_path / "x.html").code == 2
    assert not (tmp_path / "x.html").exists()
