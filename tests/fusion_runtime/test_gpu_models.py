"""Every model's forward on a GPU: captured in a graph on every path that runs there, replayed, its sites found."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from gpus import needs_gpu

from fusionscope.fusion_runtime.comm.loopback import Loopback
from fusionscope.fusion_runtime.context import PathChoice
from fusionscope.fusion_runtime.decode import graph
from fusionscope.fusion_runtime.decode.model import DecodeModel, make_context
from fusionscope.fusion_runtime.decode.spec import MODELS

pytestmark = needs_gpu

TP, BATCH, CONTEXT = 4, 2, 256
PATHS = {name: f"ar_norm={name},moe_finalize={name},mhc_post={name}" for name in ("split", "inductor", "triton")}


def build(name: str, paths: str) -> DecodeModel:
    group = Loopback(TP, "cuda")
    ctx = make_context(group, "cuda", PathChoice.parse(PATHS[paths]))
    spec = MODELS[name].scaled().truncated(5)
    return DecodeModel(spec, group, BATCH, CONTEXT, "cuda", ctx)


def hidden_after(model: DecodeModel, replays: int = 2) -> Any:
    forward = graph.capture(model)
    for _ in range(replays):
        forward.replay()
    torch.cuda.synchronize()
    rows = [(row.boundary, row.subtype, row.layer) for row in forward.site_rows]
    assert rows == [site[:3] for site in model.spec.boundary_map()]
    assert all(0 <= row.first_node < row.last_node <= forward.node_count for row in forward.site_rows)
    return model.logits().float()


@pytest.mark.parametrize("name", sorted(MODELS))
def test_paths_agree_in_a_captured_graph(name: str) -> None:
    want = hidden_after(build(name, "split"))
    assert want.isfinite().all() and want.std() > 0.05
    for paths in ("inductor", "triton"):
        model = build(name, paths)
        got = hidden_after(model)
        taken = {row.path for row in model.ctx.recorder.rows}
        assert paths in taken, [row.declined for row in model.ctx.recorder.rows]
        assert (got - want).norm() <= 0.1 * want.norm(), (paths, float((got - want).norm() / want.norm()))
