"""The analysis commands through the command line, on runs small enough to work out by hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from literal_store import REPLAYS
from literal_traces import AR, FUSED, GEMM, NORM, SPLIT, kernels

from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Store
from fusionscope.profiler.trace import Trace, table

Documented = dict[str, Any]


def typed(document: Any, expected: Any, where: str = "$") -> None:
    """Asserts that a document has the expected keys with values of the expected types (a list: of every element)."""
    if isinstance(expected, dict):
        assert isinstance(document, dict), where
        assert set(expected) <= set(document), f"{where} lacks {set(expected) - set(document)}"
        for key, inner in expected.items():
            typed(document[key], inner, f"{where}.{key}")
    elif isinstance(expected, list):
        assert isinstance(document, list), where
        for place, item in enumerate(document):
            typed(item, expected[0], f"{where}[{place}]")
    else:
        types = expected if isinstance(expected, tuple) else (expected,)
        assert type(document) in types, f"{where} is {document!r}"


NS = (int, float)
KERNEL = {"name": str, "role": str, "launches": int, "median_ns": NS, "kernel_time_ns": NS}
ATTRIBUTE = {
    "run": str,
    "labels": [str],
    "rank": int,
    "forward": {"kind": str, "launches": int, "replays": int, "kernel_time_ns": NS, "busy_time_ns": NS, "span_ns": NS},
    "forwards": [{"kind": str, "launches": int, "replays": int}],
    "boundaries": [
        {
            "boundary": str,
            "sites": int,
            "subtypes": dict,
            "launches": int,
            "kernel_time_ns": NS,
            "share": float,
            "rung": int,
            "nested": dict,
            "kernels": [KERNEL],
        }
    ],
    "kernels": [KERNEL],
    "coverage": {
        "by_rung": {"1": float, "2": float, "3": float, "4": float, "role": float, "none": float},
        "unattributed": [{"name": str, "launches": int, "kernel_time_ns": NS}],
    },
}
VERDICT = {
    "class": str,
    "kind": str,
    "above_noise": (bool, type(None)),
    "above_margin": bool,
    "confidence": float,
    "sentence": str,
}
ESTIMATE = {
    "run": str,
    "amdahl": {"share": float, "speedup": float, "gain": float},
    "schedule": {"span_ns": NS, "saving_ns": NS, "interval_ns": [NS], "basis": str},
    "ceiling_ns": NS,
    "ceiling_source": str,
    "noise": {"mde_ns": (int, float, type(None))},
    "verdict": VERDICT,
}
BOTH = {"base": NS, "candidate": NS}
COMPARE = {
    "launches": {"base": int, "candidate": int},
    "kernel_time_ns": BOTH,
    "span_ns": BOTH,
    "fired": {"sites": int, "of_sites": int, "replays": int, "of_replays": int, "ranks": int, "of_ranks": int},
    "kernels": [{"name": str}],
    "boundaries": [{"boundary": str}],
}


SPEEDUP = ("--boundary", "ar_norm", "--speedup", "2")


def boundary(document: Documented, kind: str) -> Documented:
    """The entry of one kind."""
    return next(entry for entry in document["boundaries"] if entry["boundary"] == kind)


def test_attribute_as_json(run: Any) -> None:
    document = run("attribute", "split", "--json").json
    typed(document, ATTRIBUTE)
    step = document["forward"]
    numbers = (30_000, 30_000, 30_500)
    assert (step["launches"], step["replays"]) == (6, REPLAYS)
    assert (step["kernel_time_ns"], step["busy_time_ns"], step["span_ns"]) == numbers
    assert [entry["boundary"] for entry in document["boundaries"]] == [
        "ar_norm",
        "moe_finalize",
        "mhc_post",
        "mhc_post_pre",
        "add_norm",
    ]
    site = boundary(document, "ar_norm")
    assert (site["sites"], site["launches"], site["kernel_time_ns"], site["rung"]) == (2, 4, 10_000, 1)
    assert site["subtypes"] == {"residual": 2} and site["share"] == pytest.approx(10_000 / 30_500)
    assert [(k["name"], k["launches"], k["median_ns"], k["kernel_time_ns"]) for k in document["kernels"]] == [
        (GEMM, 2, 10_000, 20_000),
        (NORM, 2, 3_000, 6_000),
        (AR, 2, 2_000, 4_000),
    ]
    assert document["coverage"]["by_rung"] == pytest.approx(
        {"1": 1 / 3, "2": 0, "3": 0, "4": 0, "role": 2 / 3, "none": 0}
    )


def test_rules_by_name_agree_with_the_marks(run: Any) -> None:
    marked, ruled = (run("attribute", "split", "--json", *more).json for more in ([], ["--rung", "4"]))
    keys = ("sites", "launches", "kernel_time_ns", "subtypes")
    assert [boundary(marked, "ar_norm")[k] for k in keys] == [boundary(ruled, "ar_norm")[k] for k in keys]
    assert (boundary(marked, "ar_norm")["rung"], boundary(ruled, "ar_norm")["rung"]) == (1, 4)


@pytest.mark.parametrize("how", ["id", "prefix", "name", "path"])
def test_a_run_answers_to_its_id_a_prefix_its_name_and_its_path(run: Any, literal_store: Path, how: str) -> None:
    path = Store(literal_store).find("split")
    # The ids of one second differ in their last digits alone.
    ref = {"id": path.name, "prefix": path.name[:-1], "name": "split", "path": path}[how]
    assert run("attribute", ref, "--json").json["run"] == path.name


@pytest.mark.parametrize(
    ("sites", "left"),
    [
        ("ar_norm", 2),
        ("ar_norm:residual", 2),
        ("ar_norm:no_residual", 0),
        ("layer>=1", 1),
        ("layer<1,path=split", 1),
        ("site=1", 1),
        ("mhc_post", 0),
    ],
)
def test_sites_narrow(run: Any, sites: str, left: int) -> None:
    document = run("attribute", "split", "--sites", sites, "--json").json
    found = boundary(document, "ar_norm")
    assert (found["sites"], found["launches"]) == (left, 2 * left)
    assert document["forward"]["launches"] == 6


RULES = """
[[role]]
role = "my_gemm"
pattern = "nvjet"
[[boundary]]
name = "gemm_ar"
split = [{ sequence = ["my_gemm", "all_reduce"], subtype = "mine" }]
"""


@pytest.mark.parametrize("how", ["option", "environment"])
def test_a_users_own_boundary(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(RULES)
    more = ["--rules", file] if how == "option" else []
    if how == "environment":
        monkeypatch.setenv("FUSIONSCOPE_RULES", str(file))
    found = boundary(run("attribute", "traced", "--json", *more).json, "gemm_ar")
    assert (found["sites"], found["launches"], found["subtypes"], found["rung"]) == (2, 4, {"mine": 2}, 4)
    estimated = run("estimate", "traced", "--boundary", "gemm_ar:mine", "--fused-us", "9", "--json", *more)
    assert estimated.code == 0
    # Each site's 12.1 us (with the gap inside it) become 9 us.
    assert estimated.json["schedule"]["saving_ns"] == 6_200


def test_estimate_as_json(run: Any) -> None:
    answer = run("estimate", "split", "--boundary", "ar_norm", "--fused-us", 4, "--fused-from", "candidate", "--json")
    document = answer.json
    typed(document, ESTIMATE)
    assert document["amdahl"]["share"] == pytest.approx(10_000 / 30_500)
    assert document["amdahl"]["speedup"] == pytest.approx(1.25)
    assert document["amdahl"]["gain"] == pytest.approx(10_000 / 30_500 * 0.2)
    # Traced, a site's 5.1 us become 4: 2.2 us in all. Tracing adds (30.5 - 29.5) / 6 us a launch, two launches go,
    # and 110 ns of tracing with each, since half of that is less.
    assert document["schedule"]["traced_saving_ns"] == 2_200
    assert document["schedule"]["saving_ns"] == 1_980
    assert (document["schedule"]["basis"], document["schedule"]["span_ns"]) == ("untraced", 29_500)
    low, high = document["schedule"]["interval_ns"]
    assert low < document["schedule"]["saving_ns"] < high
    assert 0 < document["noise"]["mde_ns"] < 100
    assert (document["ceiling_source"], document["verdict"]["kind"]) == ("schedule", "predicted")
    # What a fusion does to its neighbours is allowed for with 2 us at two sites, which is as much as this one saves.
    assert (document["verdict"]["class"], document["verdict"]["above_noise"]) == ("inconclusive", False)
    faster = run("estimate", "split", "--boundary", "ar_norm", "--fused-us", 2, "--fused-from", "candidate", "--json")
    assert faster.json["verdict"]["class"] == "worth_merging"


def test_without_untraced_times_an_estimate_is_inconclusive(run: Any) -> None:
    document = run("estimate", "traced", "--boundary", "ar_norm", "--speedup", 2, "--json").json
    typed(document, ESTIMATE)
    assert document["schedule"]["basis"] == "traced"
    assert document["noise"]["mde_ns"] is None and document["verdict"]["above_noise"] is None
    assert document["verdict"]["class"] == "inconclusive"
    assert "--timings" in document["verdict"]["sentence"] and "--fused-us" in document["verdict"]["sentence"]


def test_without_a_graph_the_gaps_are_said_to_be_the_hosts(run: Any) -> None:
    sentences = [
        run("estimate", name, "--boundary", "ar_norm", "--speedup", 2, "--json").json["verdict"]["sentence"]
        for name in ("eager", "traced")
    ]
    assert ["No graph was replayed" in sentence for sentence in sentences] == [True, False]


def test_a_candidate_with_more_launches_keeps_its_gaps(run: Any) -> None:
    command = ("estimate", "split", "--boundary", "ar_norm", "--fused-us", 4, "--json")
    one, two = (run(*command, "--fused-launches", n).json["schedule"]["saving_ns"] for n in (1, 2))
    # With two launches the gap of 0.1 us a site stays, and tracing costs both sides the same; with one it takes
    # 0.11 us of tracing along.
    assert one == 1_980 and two == 2_000


def test_compare_as_json(run: Any) -> None:
    document = run("compare", "split", "fused", "--json").json
    typed(document, COMPARE)
    assert document["launches"] == {"base": 6, "candidate": 4}
    assert document["kernel_time_ns"] == {"base": 30_000, "candidate": 28_000}
    assert document["span_ns"] == {"base": 30_500, "candidate": 28_300}
    expected = {"sites": 2, "of_sites": 2, "replays": REPLAYS, "of_replays": REPLAYS, "ranks": 1}
    assert {key: document["fired"][key] for key in expected} == expected
    moved = {row["name"]: row["status"] for row in document["kernels"]}
    assert moved == {AR: "removed", NORM: "removed", FUSED: "added", GEMM: "untouched"}
    assert document["differs"]["SGLANG_FUSED"] == {"base": "unset", "candidate": "1"}
    assert document["measured"]["saving_ns"] == 2_000
    typed(document["measured"]["verdict"], VERDICT)
    assert document["measured"]["verdict"]["kind"] == "observed"


def test_the_same_kernels_on_both_sides_did_not_fire(run: Any) -> None:
    document = run("compare", "split", "traced", "--json").json
    typed(document, COMPARE)
    assert (document["did_fire"], document["same_sequence"], document["fired"]["sites"]) == (False, True, 0)
    assert "Did not fire" in run("compare", "split", "traced").out
    assert "did not fire" in run("summary", "split", "traced").out.splitlines()[0]


def test_a_summary_adds_up_and_is_in_the_json(run: Any) -> None:
    answer = run("summary", "split", "fused")
    lines = answer.out.splitlines()
    assert lines[0].startswith(
        "### `ar_norm` fused at 2 sites: 2.00 us less per decode forward (-6.78 % of the replay), observed in one"
    )
    assert run("summary", "split", "fused", "--json").json["markdown"] == answer.out
    rows = [line.split("|")[1:-1] for line in lines if line.startswith("| ")]
    parts = [row for row in rows if "in this boundary" in row[0] or "all other kernels" in row[0]]
    assert sum(float(row[3].split()[0]) for row in parts) == pytest.approx(-2.0)


def test_amdahl(run: Any) -> None:
    document = run("amdahl", "--share", "0.0033", "--speedup", "2.0", "--json").json
    assert set(document) == {"share", "speedup", "gain"}
    assert (document["share"], document["speedup"]) == (0.0033, 2.0)
    assert document["gain"] == pytest.approx(0.00165, rel=1e-12)
    assert run("amdahl", "--share", "0.0033", "--speedup", "2.0").out == (
        "0.3300% of the time, 2 times faster: saves 0.1650% of the time.\n"
    )


def test_runs_and_show_as_json(run: Any) -> None:
    rows = [row for row in run("runs", "--json").json["runs"] if not row["run"].startswith("example")]
    typed(rows, [{"run": str, "name": str, "path": str, "labels": [str], "model": str, "tp": int, "batch": int}])
    assert sorted(row["name"] for row in rows) == ["eager", "empty", "fused", "graph", "once", "split", "traced"]
    document = run("show", "split", "--json").json
    whole = {"launches": int, "kernel_time_ns": int, "busy_time_ns": int, "graph_launches": int, "ranks": int}
    typed(document, {**whole, "devices": int, "labels": [str], "run": str})
    assert (document["launches"], document["kernel_time_ns"]) == (6 * REPLAYS, 30_000 * REPLAYS)
    assert run("show", "graph", "--json").json["labels"] == ["graph mode"]


@pytest.mark.parametrize(
    "command", [("attribute", "split"), ("estimate", "split", *SPEEDUP), ("compare", "split", "fused"),
                ("summary", "split", "fused")], ids=lambda command: command[0]
)  # fmt: skip
def test_every_analysis_command_takes_the_same_options(
    run: Any, literal_store: Path, command: tuple[str, ...], tmp_path: Path
) -> None:
    rules = tmp_path / "mine.toml"
    rules.write_text(RULES)
    kind = run("attribute", "split", "--json").json["forward"]["kind"]
    common = ("--store", literal_store, "--rank", 0, "--forward", kind, "--rules", rules, "--rules", rules, "--json")
    answer = run(*command, *common, "--sites", "ar_norm")
    assert (answer.code, answer.err) == (0, "")
    for wrong in (("--rank", 7), ("--forward", "none")):
        assert run(*command, *wrong).code == 2


def test_one_replay_says_how_to_record_more(run: Any) -> None:
    answer = run("attribute", "once")
    assert answer.code == 0
    assert "One replay only" in answer.out and "--replays" in answer.out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("attribute", "graph"), "--cuda-graph-trace=node"),
        (("estimate", "graph", *SPEEDUP), "--cuda-graph-trace=node"),
        (("compare", "graph", "split"), "--cuda-graph-trace=node"),
        (("summary", "split", "graph"), "--cuda-graph-trace=node"),
        (("attribute", "split", "--rank", "5"), "it has rank 0: choose one with --rank"),
        (("attribute", "empty"), "no timed kernels at all: record it again"),
        (("attribute", "split", "--rung", "5"), "--rung 5"),
        (("attribute", "traced", "--rung", "1"), "--provenance"),
        (("attribute", "split", "--forward", "nope"), "--forward nope"),
        (("attribute", "split", "--sites", "nope"), "names no kind of boundary: choose ar_norm"),
        (("attribute", "split", "--sites", "nope:x"), "names no kind of boundary"),
        (("attribute", "split", "--sites", "layer~3"), "--sites cannot read 'layer~3'"),
        (("attribute", "split", "--sites", "layer>=x"), "whole number"),
        (("attribute", "traced", "--sites", "layer>=1"), "--provenance"),
        (("attribute", "split", "--rules", "/no/such.toml"), "/no/such.toml cannot be read (No such file"),
        (("attribute", "absent"), "fusionscope runs"),
        (("attribute", "20"), "names 7 runs"),
        (("estimate", "split", *SPEEDUP, "--fused-us", "4"), "either --speedup S or --fused-us T"),
        (("estimate", "split", *SPEEDUP, "--isolated-split-us", "4"), "goes with --fused-us T --fused-from isolated"),
        (("estimate", "split", *SPEEDUP, "--from", "bench.csv"), "leave --speedup, --fused-us"),
        (("estimate", "split", "--boundary", "ar_norm", "--from", "/no/such.csv"), "/no/such.csv cannot be read"),
        (("estimate", "split", *SPEEDUP, "--link-gbps", "0"), "--link-gbps must be a number above 0"),
        (("estimate", "split", *SPEEDUP, "--fused-from", "wish"), "choose candidate, in-context, isolated, guess"),
        (("estimate", "split", "--boundary", "ar_norm", "--speedup", "0"), "--speedup must be a number above 0"),
        (("estimate", "split", "--boundary", "ar_norm", "--fused-us", "-1"), "--fused-us must be a number above 0"),
        (("estimate", "split", "--boundary", "nope", "--speedup", "2"), "choose ar_norm"),
        (("estimate", "split", "--boundary", "mhc_post", "--speedup", "2"), "0 sites of mhc_post"),
        (("estimate", "split", "--boundary", "ar_norm:x", "--speedup", "2"), "subtypes here: residual"),
        (("estimate", "split", *SPEEDUP, "--margin", "much"), "--margin"),
        (("estimate", "split", "--speedup", "2"), "--boundary"),
        (("amdahl", "--share", "2", "--speedup", "2"), "--share"),
        (("amdahl", "--share", "0.1", "--speedup", "-1"), "--speedup"),
        (("import", "/no/such.sqlite"), "/no/such.sqlite"),
        (("show", "absent"), "fusionscope runs"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_an_error_is_one_sentence_on_stderr_and_exit_code_2(
    run: Any, args: tuple[str, ...], said: str, form: list[str]
) -> None:
    answer = run(*args, *form)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert said in answer.err


H200 = ("--boundary", "ar_norm", "--fused-us", "4.03", "--fused-from", "candidate", "--json")


def test_the_samples_estimate_as_measured(fusionscope: Any, samples: Path) -> None:
    folder = samples / "h200_ar_norm"
    for arm in ("split", "fused"):
        files = (folder / f"{arm}.nsys.sqlite", "--provenance", folder / f"{arm}.nodes.json")
        answer = fusionscope(
            "import", *files, "--timings", f"{folder / 'untraced_abba.json'}:{arm}", "--name", arm, "--json"
        )
        assert answer.code == 0
        typed(answer.json, {"run": str, "path": str, "labels": [str]})
    document = fusionscope("estimate", "split", *H200).json
    low, high = document["schedule"]["interval_ns"]
    # Two captures of one program differ by up to 0.7 % of the step, 6 us, and one of each arm was measured.
    assert document["schedule"]["saving_ns"] == pytest.approx(30_100, rel=0.15)
    assert low <= 30_100 <= high and high - low <= 23_000
    assert (document["verdict"]["class"], document["schedule"]["basis"]) == ("worth_merging", "untraced")
    isolated = fusionscope(
        "estimate", "split", "--boundary", "ar_norm", "--fused-us", 2.81, "--fused-from", "isolated", "--json"
    )
    low, high = isolated.json["schedule"]["interval_ns"]
    assert low <= 30_100 <= high
    assert "alone in a loop" in isolated.json["verdict"]["sentence"]
    compared = fusionscope("compare", "split", "fused", "--json").json
    assert compared["launches"] == {"base": 225, "candidate": 180}
    # Both traces foretell it more closely than the fused time alone.
    told = re.search(r"predicted beforehand: (\S+) us \[(\S+) us, (\S+) us\]", compared["quote"])
    assert told is not None
    saving, low, high = map(float, told.groups())
    assert saving == pytest.approx(30.1, rel=0.12) and low <= 30.1 <= high and high - low <= 10
    # Both arms' times come from one file, so from one process: nothing is said of two.
    assert "processes" not in compared["measured"]["verdict"]["sentence"]
    oracle = json.loads((samples / "oracle.json").read_text())["h200_ar_norm/split.nsys.sqlite"]["oracle"]
    step = fusionscope("attribute", "split", "--json").json["forward"]
    assert step["kernel_time_ns"] == oracle["median_replay_kernel_sum_ns"]


def test_the_samples_without_times_are_inconclusive(fusionscope: Any, samples: Path) -> None:
    assert fusionscope("import", samples / "h200_ar_norm" / "split.nsys.sqlite", "--name", "s").code == 0
    document = fusionscope("estimate", "s", *H200).json
    assert (document["schedule"]["basis"], document["noise"]["mde_ns"]) == ("traced", None)
    assert document["verdict"]["class"] == "inconclusive" and "--timings" in document["verdict"]["sentence"]


def test_ranks_says_what_one_rank_cannot_tell(run: Any) -> None:
    answer = run("ranks", "split")
    assert answer.code == 0 and "unknown wait" in answer.out
    told = run("ranks", "split", "--json").json
    assert told["ranks"] == [
        {
            "rank": 0, "launches": 6, "replays": REPLAYS, "batch": 4, "span_ns": 30_500,
            "reduce_ns": REPLAYS * 4_000, "transfer_ns": None, "wait_ns": None, "forward_wait_ns": None, "last": None,
        }
    ]  # fmt: skip
    assert run("ranks", "graph").code == 2


def test_ranks_shows_the_batch_of_the_built_in_model(run: Any) -> None:
    told = run("ranks", "example", "--json").json
    assert told["tokens"] == 4 and [row["batch"] for row in told["ranks"]] == [4]
    assert "4 tokens a step" in run("ranks", "example").out


def test_the_lowest_traced_rank_is_the_default(fusionscope: Any, tmp_path: Path) -> None:
    rows = kernels([SPLIT] * 3).assign(rank=3)
    store = Store(tmp_path)
    for name in ("three", "too"):
        store.save(RunInfo(name=name, batch=4), Trace(kernels=table("kernels", rows), world_size=8))
    assert fusionscope("attribute", "three", "--json", "--store", tmp_path).json["rank"] == 3
    assert "rank 3" in fusionscope("compare", "three", "too", "--store", tmp_path).out
    assert fusionscope("check", "three", "--expect", "launches==6", "--store", tmp_path).code == 0
    for command in ("suggest three", "summary three too", "estimate three --boundary ar_norm"):
        assert fusionscope(*command.split(), "--store", tmp_path).code == 0
    assert (
        "it has rank 3: choose one with --rank" in fusionscope("suggest", "three", "--rank", 0, "--store", tmp_path).err
    )


def test_a_trace_in_the_place_of_a_run_is_told_to_be_imported(
    fusionscope: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rank 0.json").write_text("{}")
    (tmp_path / "traces").mkdir()
    monkeypatch.chdir(tmp_path)
    for given in ("rank 0.json", "./rank 0.json"):
        assert "make one of it with `fusionscope import 'rank 0.json'`" in fusionscope("attribute", given).err
    assert "make one of traces with `fusionscope import`" in fusionscope("attribute", "./traces").err
