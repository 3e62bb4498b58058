"""`fusionscope rules check`, and `--boundary KIND=A;B` on the commands that analyse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

TIGHT = "[[boundary]]\nname = 'tight'\nsplit = [{ sequence = ['gemm', 'all_reduce', 'residual_rms_norm', 'gemm'] }]\n"
ADHOC = "mine=nvjet;all_reduce"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(TIGHT)
    return path


def test_check_as_json(run: Any, file: Path) -> None:
    answer = run("rules", "check", file, "split", "--json")
    assert answer.code == 0
    [row] = answer.json["boundaries"]
    assert (row["boundary"], row["sites"], row["expected"], row["fits"]) == ("tight", 1, None, True)
    assert [(k["launch"], k["role"]) for k in row["first"]] == [
        (0, "gemm"), (1, "all_reduce"), (2, "residual_rms_norm"), (3, "gemm"),
    ]  # fmt: skip
    assert answer.json["unused_roles"] == []


def test_check_for_people_names_the_element_that_failed(run: Any, file: Path) -> None:
    file.write_text(TIGHT.replace("'residual_rms_norm', 'gemm'", "'rms_norm'") + "expect_sites = 2\n")
    answer = run("rules", "check", file, "split")
    assert answer.code == 1
    said = " ".join(answer.out.split())
    assert (
        "tight, split: 2 times as wanted up to element 3 (role rms_norm), and then fused_add_rmsnorm_kernel "
        "(residual_rms_norm, launch 2)." in said
    )


def test_check_asks_for_the_layers(run: Any) -> None:
    answer = run("rules", "check", "attention", "split")
    assert answer.code == 1 and "--set layers=N" in answer.out


@pytest.mark.parametrize(
    "args,says",
    [(("list", "x", "split"), "rules check FILE RUN"), (("check", "nowhere.toml", "split"), "shipped rules")],
)
def test_wrong_use(run: Any, args: tuple[str, ...], says: str) -> None:
    answer = run("rules", *args)
    assert answer.code == 2 and says in answer.err


def test_a_boundary_on_the_command_line(run: Any) -> None:
    rows = {r["boundary"]: r for r in run("attribute", "split", "--boundary", ADHOC, "--json").json["boundaries"]}
    assert (rows["mine"]["sites"], rows["mine"]["launches"], rows["mine"]["rung"]) == (2, 4, 4)
    predicted = run("estimate", "split", "--boundary", ADHOC, "--speedup", "2", "--json").json
    assert (predicted["boundary"], predicted["sites"]) == ("mine", 2)
    compared = run("compare", "split", "fused", "--boundary", ADHOC, "--json").json
    changed = {c["boundary"]: c for c in compared["boundaries"]}
    assert changed["mine"]["sites"] == {"base": 2, "candidate": 0}
    assert run("summary", "split", "fused", "--boundary", ADHOC).code == 0
    assert run("ranks", "split", "--boundary", ADHOC).code == 0
    wrong = run("attribute", "split", "--boundary", "mine")
    assert wrong.code == 2 and "rope_kv=rotary_embedding" in wrong.err


def test_every_command_that_takes_rules_takes_a_boundary() -> None:
    """But `comment`, which makes the summary of somebody's runs again, from files alone."""
    import importlib
    import inspect

    from fusionscope.cli.main import COMMANDS

    for name, module, function, *_ in COMMANDS:
        taken = inspect.signature(getattr(importlib.import_module(f"fusionscope.cli.{module}"), function)).parameters
        assert "rules" not in taken or "boundary" in taken or name == "comment", name
