"""Files of the dashboard: what they hold, and that no cell runs in a spreadsheet."""

from __future__ import annotations

import csv
import io
from typing import Any
from urllib.parse import quote

import pytest
from dashboard_store import FORMULA

from fusionscope.dashboard.app import make_app
from fusionscope.dashboard.downloads import FILES, csv_text
from fusionscope.dashboard.library import Library


@pytest.fixture(scope="module")
def client(library: Library) -> Any:
    return make_app(library).server.test_client()


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1+cmd", "@sum", "\tx", "\rx"])
def test_a_text_that_starts_a_formula_is_quoted(cell: str) -> None:
    (row,) = rows(csv_text([{"Name": cell, "Difference (us)": -1.5, "None": None}]))
    assert row == {"Name": "'" + cell, "Difference (us)": "-1.5", "None": ""}


def test_no_rows_are_an_empty_file() -> None:
    assert csv_text([]) == ""


def test_kernels_of_the_example(client: Any) -> None:
    answer = client.get("/download/kernels.csv?run=example")
    assert answer.headers["Content-Disposition"] == 'attachment; filename="fusionscope-kernels.csv"'
    told = rows(answer.text)
    assert sum(int(row["Launches"]) for row in told) == 1629
    assert sum(float(row["Share of kernel time (%)"]) for row in told) == pytest.approx(100, abs=0.5)


def test_the_timeline_is_every_launch_of_one_replay(client: Any) -> None:
    told = rows(client.get("/download/timeline.csv?run=split").text)
    assert [float(row["Start (us)"]) for row in told] == [0.0, 10.1, 12.2, 15.3, 25.4, 27.5]
    assert [row["Boundary"] for row in told] == ["", "ar_norm", "ar_norm"] * 2


def test_gaps_add_up(client: Any) -> None:
    told = rows(client.get("/download/gaps.csv?run=split").text)
    assert sum(float(row["Gap (us)"]) for row in told) == pytest.approx(0.5)


def test_a_comparison_counts_launches(client: Any) -> None:
    told = rows(client.get("/download/totals.csv?base=split&candidate=fused").text)
    assert [(r["Value"], r["Difference"]) for r in told if r["Total"] == "Launches"] == [("6", "0.0"), ("4", "-2.0")]
    status = {
        r["Kernel"]: r["Status"]
        for r in rows(client.get("/download/compared-kernels.csv?base=split&candidate=fused").text)
    }
    assert status["nvjet_sm90_gemm"] == "untouched"
    assert status["fused_add_rmsnorm_kernel"] == "removed"
    (ar,) = [r for r in rows(client.get("/download/compared-boundaries.csv?base=split&candidate=fused").text)
             if r["Boundary"] == "ar_norm"]  # fmt: skip
    assert (ar["Sites"], ar["Fired at"], ar["Difference (us)"]) == ("2", "2", "-2.0")


def test_a_formula_in_a_trace_stays_text(client: Any) -> None:
    told = rows(client.get("/download/runs.csv").text)
    assert [row["Name"] for row in told if "HYPERLINK" in row["Name"]] == ["'" + FORMULA]
    kernels = rows(client.get(f"/download/kernels.csv?run={quote('<script>')}").text)
    assert "'" + FORMULA in [row["Full name"] for row in kernels]


def test_the_summary_is_markdown(client: Any) -> None:
    answer = client.get("/download/summary.md?base=example&candidate=example-fused&margin=0.5")
    assert answer.content_type == "text/markdown; charset=utf-8"
    assert answer.text.startswith("### `mhc_post` fused at 90 sites")


@pytest.mark.parametrize("name", [n for n in FILES if n not in ("runs.csv", "accuracy.csv")])
def test_what_cannot_be_made_is_one_sentence(client: Any, name: str) -> None:
    answer = client.get(f"/download/{name}?run=../x&base=../x&candidate=../x")
    assert (answer.status_code, answer.content_type) == (400, "text/plain; charset=utf-8")
    assert "'../x' is no run of this store" in answer.text


def test_there_are_no_other_files(client: Any) -> None:
    assert client.get("/download/etc.csv").status_code == 404
    # Any other path is the application itself, which then says that there is no such page.
    assert "[project]" not in client.get("/download/..%2F..%2Fpyproject.toml").text
