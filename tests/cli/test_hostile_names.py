"""Names in a trace are somebody else's: whatever shows them, they act on no terminal, page or spreadsheet."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from literal_traces import kernels

from fusionscope.analysis.export_tables import csv
from fusionscope.analysis.names import short
from fusionscope.analysis.texts import seen, seen_lines
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Store
from fusionscope.profiler.trace import Trace

HOSTILE = [
    "=cmd|'/c calc'!A1\x1b[31mred\x1b[0m",
    "\u202elenrek\u2066_turned",
    "one_shot_all_reduce_kernel\x1b]0;title\x07",
    "fused_add_rmsnorm_kernel\x1b[2J",
    "line\nend\r\x9b2J\u2028\x00",
    "[red]markup[/red]",
    "<script>alert(1)</script>",
]
#: What a terminal or an editor would act on; the ends of lines are ours.
ACTING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


@pytest.fixture(scope="module")
def hostile_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile") / "store"
    launches = [(name, 10_000 * place, 5_000) for place, name in enumerate(HOSTILE)]
    info = RunInfo(
        name="hostile", model="m\x1b[31m\u202e", device="cuda", tp=1, batch=1, profiler="nsys\x1b[5m",
        machine={"gpu": "GPU\x1b[31m<img src=x>\u202e"}, warnings=["told\x1b[2J"],
    )  # fmt: skip
    store = Store(folder)
    for each in (launches, launches[:-1]):
        trace = Trace(kernels=kernels([each] * 3), machine=info.machine, warnings=("told\x1b[2J",))
        store.save(info, trace)
        info.name = "hostile-too"
    return folder


@pytest.mark.parametrize(
    "command",
    [
        "runs", "show hostile", "attribute hostile", "ranks hostile", "suggest hostile --toml",
        "compare hostile hostile-too", "summary hostile hostile-too", "summary hostile hostile-too --format html",
        "attribute hostile --json", "show hostile --json", "compare hostile hostile-too --json",
        "check hostile --expect launches==1", "estimate hostile --boundary a=one_shot;fused_add --speedup 2",
        "show no\x1b[31mrun", "attribute hostile --forward \x1b[31m",
    ],
)  # fmt: skip
def test_no_command_prints_what_a_terminal_acts_on(fusionscope: Any, hostile_store: Path, command: str) -> None:
    answer = fusionscope(*command.split(" "), "--store", hostile_store)
    assert answer.out or answer.err
    assert not ACTING.search(answer.out + answer.err)
    assert "<script>alert" not in answer.out or "html" not in command


def test_json_keeps_the_names_as_they_are(fusionscope: Any, hostile_store: Path) -> None:
    told = fusionscope("attribute", "hostile", "--json", "--store", hostile_store).json
    assert {kernel["name"] for kernel in told["kernels"]} == set(HOSTILE)


def test_exports_and_reports_hold_nothing_of_it(fusionscope: Any, hostile_store: Path, tmp_path: Path) -> None:
    assert fusionscope("export", "hostile", "--csv", tmp_path, "--store", hostile_store).code == 0
    tables = "".join(file.read_text() for file in sorted(tmp_path.glob("*.csv")))
    assert "'=cmd" in tables and not ACTING.search(tables)
    assert fusionscope("report", "hostile", "--html", tmp_path / "r.html", "--store", hostile_store).code == 0
    page = (tmp_path / "r.html").read_text()
    assert "\x1b" not in page and "\u202e" not in page and "<script>alert" not in page


def test_json_of_a_terminal_without_these_letters_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    from fusionscope.cli import output

    payload = {"name": "é\U0001f600\u202e\x9b", "n": 1}
    for encoding in ("ascii", "utf-8"):
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
        output.write_json(payload)
        assert json.loads(raw.getvalue()) == payload


def test_texts_lose_what_is_not_seen_and_nothing_else() -> None:
    assert seen("a\x1b[31mb\u202e\u200bc\nd é ± ×") == "a [31mb c d é ± ×"
    assert seen_lines("a\x1b\x07b\n\nc\u202ed\r\n") == "a b\n\nc d \n"
    assert short("one_shot_all_reduce_kernel\x1b]0;x\x07") == "one_shot_all_reduce_kernel_]0;x_"
    import pandas as pd

    assert csv(pd.DataFrame({"name": ["\x1b=1+1", "a\x1b[2Jb"]})) == '"name"\n"\' =1+1"\n"a [2Jb"\n'


def test_kernels_of_one_name_are_told_apart(fusionscope: Any, tmp_path: Path) -> None:
    names = ["void mul_mat<(type)13>(int)", "void mul_mat<(type)12>(int)"]
    launches = [(name, 10_000 * place, 5_000) for place, name in enumerate(names)]
    Store(tmp_path).save(RunInfo(name="twice"), Trace(kernels=kernels([launches] * 3)))
    for command in (["attribute", "twice"], ["compare", "twice", "twice"]):
        out = fusionscope(*command, "--store", tmp_path).out
        assert "mul_mat<(type)13>" in out and "mul_mat<(type)12>" in out
