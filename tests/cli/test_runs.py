"""The frame of the command line, `runs` and `show`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from literal_traces import SPLIT, kernels, timings

from fusionscope.cli import output
from fusionscope.cli.main import COMMANDS
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Store
from fusionscope.profiler.trace import Trace, table


def test_help_lists_every_command_and_shows_an_example(fusionscope: Any) -> None:
    answer = fusionscope("--help")
    assert answer.code == 0
    assert "Example: fusionscope capture --model glm-5.3-flash --tp 4" in answer.out
    assert all(f" {name} " in answer.out for name, _, _, _ in COMMANDS)


@pytest.mark.parametrize("name", [name for name, _, _, _ in COMMANDS])
def test_every_command_has_help_with_an_example(fusionscope: Any, name: str) -> None:
    answer = fusionscope(name, "--help")
    assert answer.code == 0
    assert f"Example: fusionscope {name} " in answer.out.replace("\n", " ")
    usage, *lines = answer.out.splitlines()
    assert usage.startswith(f"Usage: fusionscope {name} [OPTIONS]")
    assert all(len(line) <= 80 for line in [usage, *lines])
    assert not re.search(r"<[a-z\[]|\{", answer.out), "types and braces are the library's, not a person's words"


@pytest.mark.parametrize(("typed", "meant"), [("sumary", "summary"), ("run", "runs"), ("exprot", "export")])
def test_a_mistyped_command_is_told_what_it_is_near_to(fusionscope: Any, typed: str, meant: str) -> None:
    answer = fusionscope(typed)
    assert answer.code == 2
    assert answer.err.startswith(f"No such command '{typed}'; did you mean {meant}") and "--help" in answer.err


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["no-such-command"],
        ["runs", "--no-such-option"],
        ["show"],
        ["show", "nothing"],
        ["show", "nothing", "--json"],
        ["runs", "--store", __file__],
    ],
)
def test_wrong_use_is_one_sentence_and_exit_code_2(fusionscope: Any, args: list[str]) -> None:
    answer = fusionscope(*args)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert "fusionscope" in answer.err


def test_an_empty_store_says_how_to_record(fusionscope: Any, tmp_path: Path) -> None:
    document = fusionscope("runs", "--json").json
    assert document["store"] == str(tmp_path / "store")
    assert [run for run in document["runs"] if not run["run"].startswith("example")] == []


def saved(tmp_path: Path, **info: Any) -> str:
    """A run of two ranks with an overlap and a copy, which is no launch."""
    trace = Trace(
        kernels=table(
            "kernels",
            {
                "rank": [0, 0, 0, 1],
                "device": [0, 0, 0, 1],
                "kind": ["kernel", "kernel", "memcpy", "kernel"],
                "name": ["a", "b", "Memcpy", "a"],
                "start_ns": [10, 15, 30, 10],
                "duration_ns": [10, 10, 100, 7],
            },
        ),
        launches=table("launches", {"rank": [0, 1], "is_graph": [True, False]}),
    )
    return Store(tmp_path / "store").save(RunInfo(**info), trace).info.id


def test_show_counts_everything_in_the_trace(fusionscope: Any, tmp_path: Path) -> None:
    run = saved(tmp_path, name="two", labels=["incomplete"], model="m")
    document = fusionscope("show", "two", "--json").json
    expected = {
        "run": run,
        "launches": 3,
        "kernel_time_ns": 27,
        "busy_time_ns": 22,
        "graph_launches": 1,
        "ranks": 2,
        "rank_ids": [0, 1],
        "devices": 2,
        "labels": ["incomplete"],
    }
    assert {key: document[key] for key in expected} == expected
    assert document["info"]["model"] == "m"
    shown = fusionscope("show", run[:20]).out
    assert "0.027 us" in shown and "0.022 us" in shown and "incomplete" in shown


def test_runs_lists_good_and_broken_ones(fusionscope: Any, tmp_path: Path) -> None:
    good = saved(tmp_path, name="good", tp=4, batch=8)
    bad = saved(tmp_path)
    (tmp_path / "store" / bad / "run.json").write_text("{")
    rows = {row["run"]: row for row in fusionscope("runs", "--json").json["runs"]}
    assert (rows[good]["name"], rows[good]["tp"], rows[good]["error"]) == ("good", 4, None)
    assert "damaged" in rows[bad]["error"]
    text = fusionscope("runs")
    assert text.code == 0
    assert good in text.out and "damaged" in text.out


def test_json_has_no_nan_and_integers_stay_integers(capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    output.write_json({"a": np.int64(2**62), "b": float("nan"), "c": [np.float64(0.5), np.bool_(True)], "d": (1,)})
    assert "".join(capsys.readouterr().out.split()) == '{"a":4611686018427387904,"b":null,"c":[0.5,true],"d":[1]}'


def test_show_says_what_tracing_adds(fusionscope: Any, tmp_path: Path) -> None:
    """Six launches in 30,500 ns kernel by kernel, in 30,250 ns as a whole graph."""
    times = [timings([[30_000]]).astype(object), timings([[30_250]], "graph-level trace").astype(object)]
    trace = Trace(kernels=kernels([SPLIT] * 3), timings=table("timings", pd.concat(times)))
    Store(tmp_path / "store").save(RunInfo(name="both"), trace)
    Store(tmp_path / "store").save(RunInfo(name="one"), Trace(kernels=trace.kernels))
    assert "41.7 ns per launch, +0.8% of the step" in fusionscope("show", "both").out
    assert fusionscope("show", "both", "--json").json["tracing"]["added_per_launch_ns"] == pytest.approx(250 / 6)
    assert "tracing adds" not in fusionscope("show", "one").out


def test_a_narrow_terminal_breaks_no_number_and_no_short_word() -> None:
    from rich.console import Console

    columns = ("kernel", "kernel time us", "where")
    rows = [("_moe_sum_reduce_kernel -> all_reduce_kernel", "2,369.631", "moe_finalize 41, mhc_post 41")]
    table = output.table("", columns, rows, right=columns[1:2])
    console = Console(width=200)
    from rich.measure import Measurement

    least = Measurement.get(console, console.options, table).minimum
    with console.capture() as told:
        console.print(table, width=least)
    words = told.get().split()
    assert least < 60 and {"_moe_sum_reduce_kernel", "2,369.631", "moe_finalize"} <= set(words)


def test_a_reader_that_goes_away_is_no_failure(tmp_path: Path) -> None:
    import subprocess
    import sys

    code = "import sys; from fusionscope.cli.main import run; sys.argv[1:] = ['attribute', 'example', '--json']; run()"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    assert (child.wait(timeout=60), child.stderr.read()) == (0, b"")
    child.stderr.close()
