"""`fusionscope compare` with several batch sizes and with several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from literal_traces import FUSED_RUN, SPLIT, Launch, kernels, timings

from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Store
from fusionscope.profiler.trace import Trace, merge

LATE: list[Launch] = [(n, s, 1_500 if k == 1 else d) for k, (n, s, d) in enumerate(SPLIT)]  # type: ignore[misc]


@pytest.fixture
def batches(fusionscope: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    store = Store(tmp_path / "batches")
    for batch, after, saved in ((1, FUSED_RUN, 2_000), (4, FUSED_RUN, 2_000), (16, FUSED_RUN, -900), (64, SPLIT, 1)):
        for side, launches, less in (("b", SPLIT, 0), ("c", after, saved)):
            times = timings([[29_500 - less, 29_504 - less, 29_500 - less, 29_496 - less]] * 4, processes=3)
            info = RunInfo(name=f"{side}{batch}", batch=batch, model="m", tp=4)
            store.save(info, Trace(kernels=kernels([launches] * 4), timings=times))
    both = merge([Trace(kernels=kernels([SPLIT] * 4)), Trace(kernels=kernels([LATE] * 4)).with_rank(1)])
    store.save(RunInfo(name="two"), both)
    monkeypatch.setenv("FUSIONSCOPE_STORE", str(store.root if hasattr(store, "root") else tmp_path / "batches"))
    return fusionscope


def test_a_gate_over_batches(batches: Any) -> None:
    args = ("compare", "--base", "b16", "b1", "b4", "b64", "--candidate", "c1", "c4", "c16", "c64")
    told = batches(*args, "--json").json
    assert [r["batch"] for r in told["batches"]] == [1, 4, 16, 64] and len(told["pairs"]) == 4
    assert [r["state"] for r in told["batches"]] == ["faster", "faster", "slower", "control"]
    assert told["gate"]["sentence"] == "Fuse up to 4 tokens; slower at 16; fusion off from 64; 5-15 not measured."
    text = batches(*args).out
    assert "Fuse up to 4 tokens" in text and "Controls: where both sides run the same kernels" in text


def test_a_pair_may_be_given_either_way(batches: Any) -> None:
    plain = batches("compare", "b1", "c1", "--json").json
    assert batches("compare", "--base", "b1", "--candidate", "c1", "--json").json == plain
    assert plain["ranks"] is None
    for wrong in (("b1",), ("b1", "c1", "c4"), (), ("b1", "c1", "--base", "b1")):
        answer = batches("compare", *wrong)
        assert answer.code == 2 and "BASE CANDIDATE" in answer.err


def test_all_ranks_are_shown_with_their_wait_apart(batches: Any) -> None:
    over = batches("compare", "two", "two", "--json").json["ranks"]
    assert over["base"]["slowest_span_ns"] == 30_500 and over["base"]["forward_wait_ns"] == {"0": 500, "1": 0}
    assert over["base"]["transfer_ns"] == 4 * 3_500
    assert "All ranks; fusing removes no wait" in batches("compare", "two", "two").out


def test_an_option_without_its_value_sends_to_the_help_of_its_command(batches: Any) -> None:
    answer = batches("compare", "--base", "b1", "--candidate")
    assert answer.code == 2
    assert answer.err.strip() == "Option '--candidate' requires an argument. See `fusionscope compare --help`."
