"""`fusionscope capture` on a GPU: the first layers of the model under every profiler that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpus import needs_gpu

from fusionscope.analysis.analysed import analyse
from fusionscope.profiler.capture import cupti, nsys
from fusionscope.profiler.store import Store

pytestmark = needs_gpu
MISSING = {"torch": lambda: "", "cupti": cupti.unavailable, "nsys": nsys.unavailable}


@pytest.mark.parametrize("profiler", list(MISSING))
@pytest.mark.parametrize(("paths", "per_site"), [("mhc_post=split", 2), ("mhc_post=triton", 1)])
def test_every_replay_has_every_node(
    fusionscope: Any, tmp_path: Path, profiler: str, paths: str, per_site: int
) -> None:
    if reason := MISSING[profiler]():
        pytest.skip(reason)
    arguments = ("--model", "glm-5.3-flash", "--tp", 4, "--layers", 5, "--replays", 4, "--paths", paths)
    answer = fusionscope("capture", *arguments, "--device", "cuda", "--profiler", profiler, "--json")
    assert answer.code == 0, answer.err
    assert {"built-in model", "truncated layers"} <= set(answer.json["labels"])
    trace = Store(tmp_path / "store").load(answer.json["run"]).trace
    kernels = trace.kernels[(trace.kernels["rank"] == 0) & (trace.kernels["replay"] >= 0)]
    per_replay = kernels.groupby("replay")["node"].apply(lambda nodes: tuple(sorted(nodes)))
    assert len(per_replay) == 1 + 4
    assert per_replay.nunique() == 1
    in_graph = set(trace.edges["source"]) | set(trace.edges["target"])
    assert len(per_replay.iloc[0]) == len(in_graph)
    # The torch profiler counts every node and names none, so that the rules must find the sites again.
    assert set(per_replay.iloc[0]) == ({-1} if profiler == "torch" else in_graph)
    sites = trace.sites[trace.sites["rank"] == 0]
    assert set(sites["node"]) <= in_graph
    counts = sites.groupby("boundary", observed=True)["site"].nunique().to_dict()
    assert counts == {"mhc_post": 10, "mhc_post_pre": 5, "moe_finalize": 2}
    inner = sites[(sites["boundary"] == "mhc_post") & (sites["subtype"] == "attn_exit")]
    assert set(inner.groupby("site").size()) == {per_site}
    untraced = trace.timings[trace.timings["source"] == "untraced"]
    assert len(untraced) == 80
    found = fusionscope("attribute", answer.json["run"], "--json").json
    rows = {row["boundary"]: row for row in found["boundaries"]}
    assert (rows["mhc_post"]["sites"], rows["mhc_post"]["rung"]) == (10, 3 if profiler == "torch" else 1)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two real ranks need two GPUs")
@pytest.mark.parametrize(("paths", "per_site"), [("mhc_post=split", 2), ("mhc_post=triton", 1)])
def test_two_real_ranks_launch_the_same_and_meet(fusionscope: Any, tmp_path: Path, paths: str, per_site: int) -> None:
    profiler = "torch" if cupti.unavailable() else "cupti"
    arguments = ("--model", "glm-5.3-flash", "--tp", 2, "--layers", 4, "--replays", 4, "--paths", paths)
    answer = fusionscope("capture", *arguments, "--device", "cuda", "--profiler", profiler, "--json")
    assert answer.code == 0, answer.err
    assert "emulated ranks" not in answer.json["labels"]
    run = Store(tmp_path / "store").load(answer.json["run"])
    found = [analyse(run, rank=rank) for rank in (0, 1)]
    assert found[0].forward.launches == found[1].forward.launches
    for one in found:
        sites = one.attribution.sites["mhc_post"]
        assert len(sites) == 8 and {len(s.columns) for s in sites if s.subtype == "attn_exit"} == {per_site}
        assert one.wait() is not None and (one.wait() >= 0).all()
