"""The bench: right paths are timed, wrong ones are not; rows, table and run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from local_peers import LocalPeers, good_ar_norm, good_mhc_post

from fusionscope.fusion_runtime.decode import boundary_chain
from fusionscope.fusion_runtime.decode.boundary_chain import BoundaryChain
from fusionscope.fusion_runtime.decode.spec import MODELS
from fusionscope.fusion_runtime.errors import BadSpec
from fusionscope.profiler.capture import bench
from fusionscope.profiler.capture.bench import Row
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.readers.bench_csv import bench_row, read_bench, rows_of_run
from fusionscope.profiler.store import Store

TINY = MODELS["tiny"]


class FakeMachine:
    """Runs what is captured once; every graph takes 48 us, and every traced site 2 us."""

    def __init__(self) -> None:
        self.flushes = 0

    def capture(self, run: Callable[[list[tuple[int, int]]], object]) -> tuple[Any, list[tuple[int, int]]]:
        marks: list[tuple[int, int]] = []
        run(marks)
        return object(), marks

    def timed(self, graph: Any) -> int:
        return 48_000

    def site_ns(self, graph: Any, marks: list[tuple[int, int]]) -> float | None:
        return 2_000.0

    def flush(self) -> None:
        self.flushes += 1

    def facts(self) -> dict[str, str]:
        return {"memory_gbps": "4000"}


def chain(boundary: str, model: str = "tiny", tokens: int = 3) -> BoundaryChain:
    spec = MODELS[model]
    spec = spec if spec is TINY else spec.scaled()
    return BoundaryChain(boundary, spec, LocalPeers(4), tokens, "cpu", sites=2)


@pytest.mark.parametrize(
    ("boundary", "model"),
    [
        ("mhc_post", "tiny"),
        ("mhc_post_pre", "tiny"),
        ("moe_finalize", "tiny"),
        ("ar_norm", "deepseek-v3"),
        ("moe_finalize", "deepseek-v3"),
    ],
)
def test_the_split_path_is_right_at_every_boundary(boundary: str, model: str) -> None:
    made = chain(boundary, model)
    step, declined = made.by_path("split")
    assert made.error(step) < 1e-4 and not declined
    assert made.forward(step, []).shape == made.x.shape


def test_a_boundary_that_the_model_lacks_is_refused() -> None:
    with pytest.raises(BadSpec, match="0 sites of ar_norm: choose from mhc_post, mhc_post_pre, moe_finalize"):
        chain("ar_norm")


def test_functions_of_a_user_are_checked() -> None:
    mhc, norm = chain("mhc_post"), chain("ar_norm", "deepseek-v3")
    assert mhc.error(mhc.by_function(good_mhc_post)) == 0
    assert norm.error(norm.by_function(good_ar_norm)) == 0
    # One output in place of two, and another shape.
    assert norm.error(norm.by_function(lambda own, peers, *rest: own)) == float("inf")
    assert mhc.error(mhc.by_function(lambda own, peers, *rest: own)) == float("inf")


def test_only_what_is_right_gets_a_time() -> None:
    machine = FakeMachine()
    names = ("good_mhc_post", "forgets_a_rank", "returns_nothing", "raises")
    rows, timings = bench.bench_tokens(chain("mhc_post"), [f"local_peers:{name}" for name in names], machine, blocks=2)
    by_name = {row.path.partition(":")[2] or row.path: row for row in rows}
    assert list(by_name) == ["split", *names]
    good = by_name["good_mhc_post"]
    assert (good.why, good.in_context_ns, good.isolated_hot_ns, good.saving_ns) == ("", 2_000, 1_000, 0)
    assert "off by" in by_name["forgets_a_rank"].why and (by_name["forgets_a_rank"].error or 0) > 0.02
    assert "off by inf" in by_name["returns_nothing"].why
    assert by_name["raises"].why == "it failed with RuntimeError: no such launch"
    for name in names[1:]:
        assert by_name[name].in_context_ns is None and by_name[name].isolated_hot_ns is None
    assert machine.flushes == 2 * bench.COLD
    assert set(timings["arm"].astype(str)) == {"split, 3 tokens", "local_peers:good_mhc_post, 3 tokens"}


def test_a_path_that_steps_back_says_why_and_gets_no_time() -> None:
    rows, _ = bench.bench_tokens(chain("mhc_post"), ["triton"], FakeMachine(), blocks=1)
    split, triton = rows
    assert split.why == "" and triton.in_context_ns is None and triton.error is None
    assert triton.why.startswith("triton: ")


@pytest.mark.parametrize("path", ["local_peers:nothing", "no_such_module:f", "local_peers:not_a_function"])
def test_what_cannot_be_loaded_is_named(path: str) -> None:
    with pytest.raises(FusionScopeError, match=r"package\.module:function"):
        bench.load_function(path)


def on_the_cpu(patch: pytest.MonkeyPatch, allowed: int) -> None:
    """Bench with a machine that is not there, and press Ctrl-C once so many numbers of tokens are done."""
    made: list[int] = []

    def of(boundary: str, spec: Any, group: Any, tokens: int, device: str) -> BoundaryChain:
        if len(made) == allowed:
            raise KeyboardInterrupt
        made.append(tokens)
        return chain(boundary, tokens=tokens)

    patch.setattr(bench, "CudaMachine", FakeMachine)
    patch.setattr(bench.machine, "describe", lambda device: {})
    patch.setattr(boundary_chain, "BoundaryChain", of)
    patch.setattr(boundary_chain, "local_group", lambda tp, device: None)


def test_ctrl_c_keeps_the_numbers_of_tokens_that_were_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_cpu(monkeypatch, allowed=2)
    run, rows = bench.run_bench("mhc_post", "tiny", 4, [1, 3, 5], ["local_peers:good_mhc_post"], Store(tmp_path))
    assert [row.tokens for row in rows] == [1, 1, 3, 3] and run.info.warnings == [bench.EARLY]
    assert run.info.machine == {"memory_gbps": "4000"}
    assert {row.tokens for row in rows_of_run(Store(tmp_path).load(run.info.id).info, "mhc_post")} == {1, 3}


def test_ctrl_c_before_anything_was_finished_stores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_cpu(monkeypatch, allowed=0)
    with pytest.raises(KeyboardInterrupt):
        bench.run_bench("mhc_post", "tiny", 4, [1], [], Store(tmp_path))
    assert not list(tmp_path.iterdir())


def test_rows_become_a_run_and_the_table_that_estimate_reads(tmp_path: Path) -> None:
    rows = [
        Row(4, "split", 0.0, "", 5_000.0, 4_000.0, None, 90_000.0, 0.0),
        Row(4, "mine:f", 0.001, "", 3_000.0, 2_500.0, 2_800.0, 74_000.0, 2_000.0),
        Row(4, "bad:f", 0.5, "its result is off"),
        # No split form at eight tokens: a row would hold the fused time against itself.
        Row(8, "mine:f", 0.001, "", 3_000.0, 2_500.0, 2_800.0, 74_000.0, 2_000.0),
    ]
    _, timings = bench.bench_tokens(chain("mhc_post"), [], FakeMachine(), blocks=1)
    run = bench.save("mhc_post", "tiny", 4, rows, timings, Store(tmp_path), "b", ["fusionscope"], device="cpu")
    loaded = Store(tmp_path).load("b")
    assert loaded.info.settings["bench"] == "mhc_post"
    assert json.loads(loaded.info.settings["rows"])[1]["saving_ns"] == 2_000
    assert {"isolated bench", "emulated ranks"} <= set(loaded.info.labels)
    found = read_bench(run.path / "bench.csv")
    # The cold split was not timed, so that setting has no row.
    assert [(row.tokens, row.split_ns, row.fused_ns, row.setting) for row in found] == [
        (4, 5_000, 3_000, "in-context"),
        (4, 4_000, 2_500, "isolated-hot"),
    ]
    assert bench_row(found, 4, "bench.csv").setting == "in-context"
