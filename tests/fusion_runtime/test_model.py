from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from compilers import needs_compiler
from torch.profiler import ProfilerActivity, profile

from fusionscope.fusion_runtime.comm.single import SingleGroup
from fusionscope.fusion_runtime.context import PathChoice
from fusionscope.fusion_runtime.decode import reference_ops
from fusionscope.fusion_runtime.decode.model import DecodeModel, make_context, ops_for
from fusionscope.fusion_runtime.decode.spec import MODELS, ModelSpec
from fusionscope.fusion_runtime.errors import BadSpec, RuntimeContractError, Unconsumed
from fusionscope.fusion_runtime.ownership import PartialSum

GLM = MODELS["glm-5.3-flash"].scaled()
TINY = MODELS["tiny"]


def build(spec: ModelSpec, group: Any = None, paths: str = "", batch: int = 4) -> DecodeModel:
    group = group or SingleGroup()
    return DecodeModel(spec, group, batch, 256, "cpu", make_context(group, "cpu", PathChoice.parse(paths)))


def events(model: DecodeModel) -> list[Any]:
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        model.step()
    return list(prof.events())


@pytest.mark.parametrize("name", sorted(MODELS))
@pytest.mark.parametrize("size", [2, 4])
def test_every_tp_computes_the_same_model(name: str, size: int, lockstep: Callable[..., list[Any]]) -> None:
    spec = MODELS[name].scaled().truncated(5)

    def two_steps(group: Any) -> tuple[Any, Any]:
        model = build(spec, group)
        model.step()
        return model.logits(), model.step()

    want, want_ids = two_steps(SingleGroup())
    for logits, ids in lockstep(size, two_steps):
        torch.testing.assert_close(logits, want, atol=2e-4, rtol=2e-4)
        assert torch.equal(ids, want_ids)
    assert want.shape == (4, spec.vocab) and want.std() > 0.1


@pytest.mark.parametrize("name", sorted(MODELS))
def test_sites_of_a_step_are_the_spec_s_boundary_map(name: str) -> None:
    spec = MODELS[name].scaled()
    model = build(spec)
    for _ in range(2):
        model.step()
        rows = [(row.boundary, row.subtype, row.layer) for row in model.ctx.recorder.rows]
        assert rows == [site[:3] for site in spec.boundary_map()]
    assert {row.path for row in model.ctx.recorder.rows} == {"split"}
    assert {(row.first_node, row.last_node) for row in model.ctx.recorder.rows} == {(-1, -1)}


def test_streams_stay_of_a_sane_size_over_45_layers() -> None:
    model = build(GLM)
    for _ in range(5):
        model.step()
    logits = model.logits()
    assert torch.isfinite(logits).all() and 0.1 < logits.std() < 10
    states = [layer.attention.state for layer in model.layers if hasattr(layer.attention, "state")]
    assert len(states) == 34 and max(float(state.abs().max()) for state in states) < 100


def test_each_site_holds_launches_and_the_forward_holds_all() -> None:
    seen = events(build(GLM.truncated(5)))
    (forward,) = [e for e in seen if e.name == "fusionscope.forward"]
    sites = [e for e in seen if e.name.startswith("fusionscope.site|mhc_post|")]
    writes = [e for e in seen if e.name == "fusionscope::mhc_write"]
    assert len(sites) == len(writes) == 10
    for site in sites:
        assert forward.time_range.start <= site.time_range.start <= site.time_range.end <= forward.time_range.end
        inside = [
            e for e in writes if site.time_range.start <= e.time_range.start and e.time_range.end <= site.time_range.end
        ]
        assert len(inside) == 1 and inside[0].time_range.elapsed_us() > 0


@needs_compiler
def test_inductor_makes_each_write_one_launch() -> None:
    split = Counter(e.name for e in events(build(TINY)))
    model = build(TINY, paths="mhc_post=inductor")
    model.step()
    fused = Counter(e.name for e in events(model))
    assert {row.path for row in model.ctx.recorder.rows if row.boundary == "mhc_post"} == {"inductor"}
    assert split - fused == Counter(
        {"fusionscope::mhc_mix": 10, "fusionscope::mhc_write": 10}
        | {f"fusionscope.site|mhc_post|{s}|{layer}|split": 1 for s in ("attn_exit", "ffn_exit") for layer in range(5)}
    )
    assert fused["inductor::mhc_post"] == 10
    launches = {name: count for name, count in (fused - split).items() if not name.startswith("fusionscope.site|")}
    assert launches == {"inductor::mhc_post": 10}


@needs_compiler
def test_inductor_does_not_change_the_result() -> None:
    split, fused = build(TINY), build(TINY, paths="mhc_post=inductor,moe_finalize=inductor")
    torch.testing.assert_close(fused.logits(), split.logits(), atol=1e-4, rtol=1e-4)


def test_a_lost_reduction_ends_the_forward_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(TINY)
    layer = model.layers[1]
    whole = layer.forward

    def forgetful(update: Any, stream: Any, ctx: Any) -> Any:
        PartialSum(torch.ones(4, 8), ctx.group, "layer1.forgotten")
        return whole(update, stream, ctx)

    monkeypatch.setattr(layer, "forward", forgetful)
    with pytest.raises(Unconsumed, match=r"layer1\.forgotten"):
        model.step()


@needs_compiler
@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v3-nextn", "qwen3.5-moe", "llama"])
def test_inductor_does_not_change_a_model_with_an_ordinary_residual(name: str) -> None:
    spec = MODELS[name].scaled().truncated(5)
    split, fused = build(spec), build(spec, paths="ar_norm=inductor,moe_finalize=inductor")
    torch.testing.assert_close(fused.logits(), split.logits(), atol=1e-4, rtol=1e-4)
    assert {row.path for row in fused.ctx.recorder.rows} == {"inductor"}


def test_a_site_of_one_layer_can_take_another_path() -> None:
    model = build(TINY, paths="mhc_post:ffn_exit@3=triton")
    model.step()
    declined = [(row.subtype, row.layer) for row in model.ctx.recorder.rows if row.declined]
    assert declined == [("ffn_exit", 3)]


def test_same_seed_same_tokens_and_wrong_use() -> None:
    assert torch.equal(build(TINY).step(), build(TINY).step())
    group = SingleGroup()
    with pytest.raises(RuntimeContractError, match="another group"):
        DecodeModel(TINY, group, 1, 256, "cpu", make_context(SingleGroup(), "cpu", PathChoice()))
    with pytest.raises(BadSpec, match="--batch 0"):
        build(TINY, batch=0)
    assert ops_for("cpu") is reference_ops
