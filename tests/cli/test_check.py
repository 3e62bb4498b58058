"""`fusionscope check`, `tag`, and runs that are named by a tag or a file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import fused_mhc_post
import pytest

from fusionscope.profiler.packed import pack
from fusionscope.profiler.store import Store


@pytest.mark.parametrize(
    ("run", "expectation", "number"),
    [
        ("example", "launches==1629", 1629),
        ("example", "replays>=12", 12),
        ("example", "mhc_post.sites==90", 90),
        ("example", "mhc_post:ffn_exit.sites==45", 45),
        ("example", "mhc_post.split==90", 90),
        ("example", "mhc_post.fused<=0", 0),
        ("example", "mhc_post.launches<181", 180),
        ("example", "kernel:one_shot_all_reduce_kernel!=90", 91),
        ("example", "ar_norm.sites==0", 0),
        ("example", "memcpy>=0", 0),
        ("example-fused", "launches<=1539", 1539),
        ("example-fused", "mhc_post:ffn_exit.fused == 45", 45),
        ("example-fused", "mhc_post.declined==0", 0),
    ],
)
def test_what_is_as_expected_passes_and_what_is_not_fails(
    fusionscope: Any, run: str, expectation: str, number: int
) -> None:
    answer = fusionscope("check", run, "--expect", expectation, "--json")
    assert (answer.code, answer.json["holds"]) == (0, True)
    assert answer.json["expectations"][0]["found"] == number
    what = re.split("[<>=! ]", expectation)[0]
    wrong = fusionscope("check", run, "--expect", expectation, "--expect", f"{what}>{number}", "--json")
    assert (wrong.code, wrong.json["holds"]) == (1, False)
    assert [row["holds"] for row in wrong.json["expectations"]] == [True, False]


def test_a_failure_prints_expected_and_found(fusionscope: Any) -> None:
    answer = fusionscope("check", "example", "--expect", "launches<=1619")
    assert answer.code == 1 and "<= 1619" in answer.out and "1629" in answer.out and "NO" in answer.out


@pytest.mark.parametrize(
    ("expectation", "said"),
    [
        ("launches", "--expect cannot read"),
        ("launches=1", "--expect cannot read"),
        ("launches==1.5", "--expect cannot read"),
        ("launches==-1", "--expect cannot read"),
        ("lunches==1", "--expect cannot count 'lunches'"),
        ("mhc_post.fusions==1", "--expect cannot count"),
        ("no_such.sites==1", "names no kind of boundary"),
    ],
)
def test_an_expectation_that_counts_nothing_is_wrong_use(fusionscope: Any, expectation: str, said: str) -> None:
    answer = fusionscope("check", "example", "--expect", expectation)
    assert answer.code == 2 and said in answer.err


def test_every_command_takes_a_tag_and_a_packed_run(run: Any, literal_store: Path, tmp_path: Path) -> None:
    file = tmp_path / "base.zip"
    pack(Store(literal_store).find("split"), file)
    for ref in (file, file.as_uri()):
        assert run("show", ref, "--json").json["launches"] == 36
        assert run("check", ref, "--expect", "launches==6").code == 0
    here = Store(tmp_path / "own")
    for name in ("split", "fused"):
        source = Store(literal_store).load(name)
        here.save(source.info, source.trace)
    own = ("--store", here.root)
    assert run("tag", "split", "main", *own).out.strip().endswith("has the tags: main")
    assert run("tag", "split", "old", "main", *own, "--json").json["tags"] == ["old", "main"]
    assert [row["name"] for row in run("runs", "--tag", "main", *own, "--json").json["runs"]] == ["split"]
    assert run("summary", "tag:main", "fused", *own).out == run("summary", "split", "fused", *own).out
    assert run("tag", "split", "main", "old", "--remove", *own, "--json").json["tags"] == []
    assert run("summary", "tag:main", "fused", *own).code == 2


def test_every_rank_is_checked_unless_one_is_named(fusionscope: Any, tmp_path: Path) -> None:
    whole, _ = fused_mhc_post.pair()
    kernels = whole.trace.kernels
    lost = (kernels["rank"] == 2) & (kernels["name"] == fused_mhc_post.TAIL)
    uneven = replace(whole.trace, kernels=kernels[~lost].reset_index(drop=True))
    own = ("--store", tmp_path, "--expect", "launches==1664", "--expect", "mhc_post:ffn_exit.sites==45", "--json")
    ref = Store(tmp_path).save(whole.info, uneven).info.id
    answer = fusionscope("check", ref, *own)
    assert answer.code == 1
    assert [(r["rank"], r["found"]) for r in answer.json["expectations"] if not r["holds"]] == [(2, 1663)]
    assert fusionscope("check", ref, *own, "--rank", 3).code == 0
    assert fusionscope("ci", ref, ref, "--out", tmp_path / "out", *own).code == 1


def test_a_kernel_that_is_not_there_is_told_what_is_near(fusionscope: Any) -> None:
    answer = fusionscope("check", "example", "--expect", "kernel:MHC_post==90")
    assert answer.code == 1 and answer.err == "No kernel here is called MHC_post; there are: mhc_post_kernel.\n"
    assert fusionscope("check", "example", "--expect", "kernel:mhc_post_kernel==90").code == 0
    assert fusionscope("check", "example", "--expect", "kernel:mhc==0").err == ""
