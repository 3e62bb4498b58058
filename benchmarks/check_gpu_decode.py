"""Checks the CUDA decode forward on a GPU, and says where its time goes.

    python benchmarks/check_gpu_decode.py [--model glm-5.3-flash] [--tp 4] [--batch 4] [--context 8192] [--layers 45]

1. every operation against the reference operations, at the model's shapes: relative errors, with limits
2. the exchange kernels with all ranks resident in one launch: waiting is real there
3. the model on loopback ranks, captured with split and with triton paths: same tokens, same recurrent states after
   chained replays from one starting state
4. time per step (CUDA events), graph nodes, sites, and the time of each kernel (torch.profiler)
Exit code 1 if anything is off. Needs one GPU (the whole GLM-5.3-Flash rank at tp 4: about 90 GB).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict

import torch

from fusionscope.fusion_runtime.boundaries import mhc_post
from fusionscope.fusion_runtime.comm.loopback import Loopback, sync_channel
from fusionscope.fusion_runtime.context import PathChoice
from fusionscope.fusion_runtime.decode import cuda_ops as ops
from fusionscope.fusion_runtime.decode import graph
from fusionscope.fusion_runtime.decode import reference_ops as ref
from fusionscope.fusion_runtime.decode.model import DecodeModel, make_context
from fusionscope.fusion_runtime.decode.spec import MODELS
from fusionscope.fusion_runtime.decode.weights import quantise_blocks
from fusionscope.fusion_runtime.kernels import launch
from fusionscope.fusion_runtime.ownership import ForwardScope

failures: list[str] = []


def error(got, want):
    got, want = got.float(), want.float()
    return float((got - want).norm() / want.norm().clamp(min=1e-20))


def check(what, value, limit):
    ok = value <= limit  # NaN is not
    print(f"  {what:44} {value:10.2e} {'ok' if ok else f'OVER {limit:g}'}", flush=True)
    if not ok:
        failures.append(what)


def randn(*shape, dtype=torch.bfloat16, std=1.0):
    return (torch.randn(*shape, device="cuda") * std).to(dtype)


def check_ops(spec, tp, T, context):
    f32, H, h, d = torch.float32, spec.hidden, spec.kda_heads // tp, spec.kda_head_dim
    x, R = randn(T, H), randn(T, 4, H)

    def same(name, *operands, limit=5e-3, **changed):
        mine = [o.clone() if id(o) in changed.get("state", ()) else o for o in operands]
        got, want = getattr(ops, name)(*mine), getattr(ref, name)(*operands)
        pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
        check(name, max(error(a, b) for a, b in pairs), limit)
        for a, b in zip(mine, operands, strict=True):
            if a is not b:
                check(f"{name}: state", error(a, b), limit)

    ids = torch.randint(spec.vocab, (T,), device="cuda")
    same("embed", ids, randn(spec.vocab // tp, H), 0)
    same("expand_streams", x, 4)
    same("stream_mean", R)
    same("rmsnorm", x, randn(H), 1e-5)
    same("add_rmsnorm", x, randn(T, H), randn(H), 1e-5, 0.0)
    same("add", x, randn(T, H))
    same("argmax", randn(T, spec.vocab), limit=0)
    hc = (randn(24, 4 * H, dtype=f32, std=0.01), torch.rand(3, device="cuda"), randn(24, dtype=f32), randn(H))
    same("hc_pre", R, *hc, 1e-5, 1e-6, 20, 2.0)
    same("mhc_post", x, R, torch.rand(T, 4, device="cuda"), torch.rand(T, 4, 4, device="cuda"))
    for n, k in (
        (3 * h * d, H),
        (H, h * d),
        (spec.shared_intermediate // tp * 2, H),
        (H, spec.shared_intermediate // tp),
    ):
        w = quantise_blocks(randn(n, k, dtype=f32))
        same("fp8_linear", randn(T, k), w.weight, w.scale)
    same("silu_mul_clamp", randn(T, 2048, std=5.0), 10.0)
    conv = randn(T, 3 * h * d, 3)
    same("causal_conv1d_update", randn(T, 3 * h * d), conv, randn(3 * h * d, 4), state={id(conv)})
    state = randn(T, h, d, d, dtype=f32)
    q, k, v, f = (randn(T, h, d) for _ in range(4))
    kda = (randn(h, dtype=f32), randn(h * d, dtype=f32), spec.gate_lower_bound)
    same("kda_update", q, k, v, f, randn(T, h), *kda, state, state={id(state)})
    same("gated_rmsnorm", q, v, randn(d), 1e-5)
    heads, pools = spec.mla_heads // tp, context // spec.index_kpool
    same("batched_heads", randn(T, heads, spec.qk_dim), randn(heads, spec.qk_dim, spec.kv_lora))
    keys = randn(T, pools, spec.index_dim)
    iq, by = randn(T, spec.index_heads, spec.index_dim), randn(T, spec.index_heads, dtype=f32)
    same("indexer_logits", iq, keys, by, limit=1e-4)
    logits = ref.indexer_logits(iq, keys, by)
    kept = spec.pools_kept(context)
    got, want = (m.topk_blocks(logits, kept).sort(-1).values for m in (ops, ref))
    check("topk_blocks", float((got != want).sum()), 0)
    cache = randn(T, context, spec.kv_lora)
    scale, latent = spec.qk_dim**-0.5, spec.kv_lora
    same("mla_decode", randn(T, heads, latent), cache, want.int(), spec.index_kpool, scale, latent)
    router = randn(spec.experts, H, dtype=f32, std=H**-0.5)
    same("router_gemm", x, router, limit=1e-5)
    chosen = ref.router(ref.router_gemm(x, router), randn(spec.experts, dtype=f32, std=0.02), spec.top_k)
    same("router", ref.router_gemm(x, router), torch.zeros(spec.experts, device="cuda"), spec.top_k, limit=1e-5)
    rows = ref.moe_align(chosen[0], spec.experts, 16)
    for a, b in zip(ops.moe_align(chosen[0], spec.experts, 16), rows, strict=True):
        check("moe_align", float((a != b).sum()), 0)
    inner = spec.expert_intermediate // tp
    real = rows[3].flatten().long()
    for n, k, top_k in ((2 * inner, H, spec.top_k), (H, inner, 0)):
        w = quantise_blocks(randn(spec.experts, n, k, dtype=f32))
        a = randn(T if top_k else rows[0].shape[0], k)
        got = ops.moe_gemm(a, w.weight, w.scale, *rows[:3], top_k)
        want = torch.cat([reference_block(a, w, rows, block, top_k) for block in range(rows[1].shape[0])])
        check("moe_gemm", error(got[real], want[real]), 5e-3)
        del w
    same("moe_sum_reduce", randn(rows[0].shape[0], H), rows[3], chosen[1], 2.5)


def reference_block(x, w, rows, block, top_k):
    """One block of rows of the grouped product: the reference unpacks a whole expert's weights for every row."""
    part = slice(16 * block, 16 * block + 16)
    taken = x if top_k else x[part]
    return ref.moe_gemm(taken, w.weight, w.scale, rows[0][part], rows[1][block : block + 1], rows[2], top_k)


def check_bits(spec, tp, T):
    """The fused post against all-reduce and post, bit for bit."""
    group = Loopback(tp, "cuda")
    channel = group.channel(T, spec.hidden, torch.bfloat16)
    differing = 0
    for _ in range(20):
        x, R = randn(T, spec.hidden), randn(T, 4, spec.hidden)
        post, comb = torch.rand(T, 4, device="cuda"), torch.rand(T, 4, 4, device="cuda")
        split = ops.mhc_post(group.all_reduce(x), R, post, comb)
        differing += int((split != launch.ar_hc_post(x, R, post, comb, channel)).sum())
    check("elements in which fused and split post differ", float(differing), 0)


def check_waiting(spec, tp, T):
    """All ranks' programs in one launch, which send to each other; in a graph, replayed."""
    channel = sync_channel(tp, T, spec.hidden, torch.bfloat16, "cuda")
    x, R = randn(tp, T, spec.hidden), randn(T, 4, spec.hidden)
    post, comb = torch.rand(T, 4, device="cuda"), torch.rand(T, 4, 4, device="cuda")

    def chain():
        for _ in range(20):
            got = launch.ar_hc_post(x, R, post, comb, channel)
        return got

    chain()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        got = chain()
    for turn in range(20):
        x.copy_(randn(*x.shape))
        captured.replay()
        if turn % 5 == 4:
            want = mhc_post.reference(list(x), R, post, comb)
            check(f"all ranks waiting, replay {turn + 1}", max(error(got[r], want) for r in range(tp)), 5e-3)


def states(model):
    found = [getattr(layer.attention, name, None) for layer in model.layers for name in ("state", "conv_state")]
    return [s for s in found if s is not None]


def reset(model, saved):
    for live, start in zip(states(model), saved, strict=True):
        live.copy_(start)


def replayed(forward, model, saved, replays=5):
    reset(model, saved)
    for _ in range(replays):
        forward.replay()
    torch.cuda.synchronize()
    return torch.cat([s.float().flatten() for s in states(model)])


def eager_logits(model):
    model.ctx.recorder.start()
    with torch.no_grad(), ForwardScope():
        return model.logits()[:, : model.spec.vocab // model.group.size].float()


def check_model(args, spec):
    begin = time.perf_counter()
    group = Loopback(args.tp, "cuda")
    ctx = make_context(group, "cuda", PathChoice())
    model = DecodeModel(spec, group, args.batch, args.context, "cuda", ctx)
    torch.cuda.synchronize()
    print(f"model built in {time.perf_counter() - begin:.1f} s, {torch.cuda.memory_allocated() / 2**30:.1f} GiB")
    saved = [s.clone() for s in states(model)]

    outcomes, forwards = {}, {}
    arms = {"split": "", "post": "mhc_post=triton", "triton": "mhc_post=triton,moe_finalize=triton"}
    for name, paths in arms.items():
        ctx.paths = PathChoice.parse(paths)
        reset(model, saved)
        logits = eager_logits(model)
        reset(model, saved)
        check(f"{name}: logits that differ when repeated", float((logits != eager_logits(model)).sum()), 0)
        begin = time.perf_counter()
        forward = forwards[name] = graph.capture(model)
        taken = time.perf_counter() - begin
        after, again = (replayed(forward, model, saved) for _ in range(2))
        check(f"{name}: states that differ when repeated", float((after != again).sum()), 0)
        outcomes[name] = logits, forward.tokens.clone(), after
        check(f"{name}: logits or states not finite", float((~logits.isfinite()).sum() + (~after.isfinite()).sum()), 0)
        sites = defaultdict(int)
        for row in forward.site_rows:
            sites[row.boundary, row.path, row.declined] += 1
        programmatic = sum(edge[2] for edge in forward.edges)
        print(
            f"{name}: {forward.node_count} nodes, {len(forward.kernel_nodes)} kernels, {len(forward.edges)} edges "
            f"({programmatic} programmatic, known {forward.edge_kinds_known}), graph id {forward.graph_id}, "
            f"captured in {taken:.1f} s, sites {dict(sites)}"
        )
        bad = [r for r in forward.site_rows if not 0 <= r.first_node < r.last_node <= forward.node_count]
        check(f"{name}: sites without nodes", float(len(bad)), 0)
    # The fused post computes what the split one does; the fused finalize rounds once where split rounds twice, and
    # a rounding can send a token to another expert.
    for name, limit in (("post", 0), ("triton", 0.1)):
        check(f"split against {name}: logits of one step", error(outcomes[name][0], outcomes["split"][0]), limit)
        check(f"split against {name}: states after 5 replays", error(outcomes[name][2], outcomes["split"][2]), limit)
        sizes = [s.numel() for s in saved]
        parts = zip(outcomes[name][2].split(sizes), outcomes["split"][2].split(sizes), strict=True)
        print(f"  error of each state in turn: {' '.join(f'{error(a, b):.0e}' for a, b in parts)}")
    print("tokens", {name: outcome[1].tolist() for name, outcome in outcomes.items()})
    for _ in range(2):
        for name, forward in forwards.items():
            print(f"{name}: {step_us(forward):.1f} us a step (median of 50 replays)")
    for name, forward in forwards.items():
        table(name, forward)


def step_us(forward):
    times = []
    for _ in range(60):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        forward.replay()
        b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b) * 1e3)
    return statistics.median(times[10:])


def table(name, forward, replays=3):
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as prof:
        for _ in range(replays):
            forward.replay()
        torch.cuda.synchronize()
    total, count = defaultdict(float), defaultdict(int)
    for event in prof.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            total[event.name] += event.device_time
            count[event.name] += 1
    whole = sum(total.values()) / replays
    print(f"{name}: {sum(count.values()) / replays:.0f} launches, {whole:.0f} us of kernels a step")
    for kernel in sorted(total, key=total.get, reverse=True)[:32]:
        each = total[kernel] / count[kernel]
        print(f"  {total[kernel] / replays:8.1f} us  {count[kernel] / replays:6.1f} x {each:7.2f} us  {kernel[:70]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="glm-5.3-flash", choices=sorted(MODELS))
    parser.add_argument("--tp", type=int, default=4)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=45)
    args = parser.parse_args()
    torch.manual_seed(0)
    spec = MODELS[args.model]
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    check_ops(spec, args.tp, args.batch, args.context)
    check_bits(spec, args.tp, args.batch)
    check_waiting(spec, args.tp, args.batch)
    torch.cuda.empty_cache()
    check_model(args, spec.truncated(args.layers))
    print("FAILED: " + ", ".join(failures) if failures else "all checks passed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
