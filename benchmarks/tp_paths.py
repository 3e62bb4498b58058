"""Every path over real ranks against the plain reference: is the answer right, and was the path taken?

    torchrun --nproc-per-node 2 benchmarks/tp_paths.py                 # GPUs of one host
    torchrun --nproc-per-node 4 benchmarks/tp_paths.py --device cpu    # gloo

Fresh inputs for each case, the same on every rank where they must be, each rank's own where they are addends. Rank 0
prints a line for each case: the path that ran, why another did not, the largest error. Exit code 1 if one is over its
limit, or if a path never ran that said nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from fusionscope.fusion_runtime.boundaries import ar_norm, mhc_post, mhc_post_pre, moe_finalize
from fusionscope.fusion_runtime.comm.process_group import ProcessGroup
from fusionscope.fusion_runtime.comm.symmetric import SymmetricGroup
from fusionscope.fusion_runtime.context import PathChoice
from fusionscope.fusion_runtime.decode.model import make_context
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import DeferredFinalize, FinalizeOperands, PartialSum
from fusionscope.fusion_runtime.quant import (
    FP8_STATIC_TENSOR,
    FP8_TOKEN_GROUP_128,
    MXFP4,
    InputQuant,
    QuantisedActivation,
    dequantise,
)

Tensor = Any
TOKENS = (1, 2, 4, 15, 16, 17, 64, 129)
PATHS = ("split", "inductor", "triton", "flashinfer", "aiter", "auto")
EXPERTS, TOP_K = 24, 4


class Inputs:
    """Draws: `same` gives every rank the same numbers, `own` each rank its own."""

    def __init__(self, rank: int, device: Any, dtype: Any) -> None:
        self.device, self.dtype = device, dtype
        self._same = torch.Generator(device).manual_seed(1)
        self._own = torch.Generator(device).manual_seed(100 + rank)

    def same(self, *shape: int, dtype: Any = None) -> Tensor:
        return torch.randn(shape, generator=self._same, device=self.device).to(dtype or self.dtype)

    def own(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._own, device=self.device).to(self.dtype)


def of_all(x: Tensor) -> list[Tensor]:
    """Every rank's x, in rank order."""
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return parts


def values(one: Any) -> Tensor:
    return (dequantise(one) if isinstance(one, QuantisedActivation) else one).double()


def error(got: Any, want: Any) -> float:
    """The largest relative error of a case's results; NaN is no small one."""
    errors = [
        float((values(a) - values(b)).norm() / values(b).norm().clamp(min=1e-30))
        for a, b in zip(got, want, strict=True)
    ]
    return max(errors) if all(e == e for e in errors) else float("inf")


def cases(draw: Inputs, group: Any, hidden: int) -> Iterator[tuple[str, str, Any, Any, float]]:
    """(boundary, what, how to run it in a context, what it must give, limit)."""
    scale = torch.tensor([0.03], device=draw.device)
    quants = (None, InputQuant(FP8_STATIC_TENSOR, scale), InputQuant(FP8_TOKEN_GROUP_128), InputQuant(MXFP4))
    for tokens in TOKENS:
        for quant in quants if tokens in (1, 16) else (None,):
            x, residual = draw.own(tokens, hidden), draw.same(tokens, hidden)
            norm = Norm(draw.same(hidden), 1e-5, float(tokens % 2))
            want = ar_norm.reference(of_all(x), residual, norm, quant)

            def run_norm(ctx: Any, x=x, residual=residual, norm=norm, quant=quant) -> Any:
                owed = PartialSum(x.clone(), group)
                return ar_norm.run(owed, residual, norm, subtype="residual", layer=0, ctx=ctx, quant=quant)

            what = f"[{tokens}, {hidden}]{f' {quant.key}' if quant else ''}"
            yield "ar_norm", what, run_norm, want, 6e-3 if quant is None else 1e-1 if quant.key == MXFP4 else 3e-2
        x, streams = draw.own(tokens, hidden), draw.same(tokens, 4, hidden)
        post, comb = (draw.same(tokens, *rest, dtype=torch.float32).abs() for rest in ((4,), (4, 4)))
        want = mhc_post.reference(of_all(x), streams, post, comb)

        def run_post(ctx: Any, x=x, streams=streams, post=post, comb=comb) -> Any:
            owed = PartialSum(x.clone(), group)
            return (mhc_post.run(owed, streams, post, comb, subtype="attn_exit", layer=0, ctx=ctx),)

        yield "mhc_post", f"[{tokens}, {hidden}]", run_post, (want,), 6e-3
        wide = 4 * hidden
        fn, base = draw.same(24, wide, dtype=torch.float32) / wide**0.5, draw.same(24, dtype=torch.float32)
        read = HyperWeights(fn, torch.full((3,), 0.5, device=draw.device), base, draw.same(hidden), 1e-5)
        mixed = comb / comb.sum(1, keepdim=True)
        want = mhc_post_pre.reference(of_all(x), streams, post, mixed, read)

        def run_joined(ctx: Any, x=x, streams=streams, post=post, mixed=mixed, read=read) -> Any:
            owed = PartialSum(x.clone(), group)
            return mhc_post_pre.run(owed, streams, post, mixed, read, layer=0, ctx=ctx)

        yield "mhc_post_pre", f"[{tokens}, {hidden}]", run_joined, want, 6e-3
        routed, shared = draw.own(EXPERTS, hidden), draw.own(tokens, hidden)
        idx = (draw.same(tokens, TOP_K, dtype=torch.float32).abs() * 9).int().clamp(max=EXPERTS) - 1
        parts = FinalizeOperands(routed, idx, draw.same(tokens, TOP_K, dtype=torch.float32).abs(), 2.5, shared)
        residual, norm = draw.same(tokens, hidden), Norm(draw.same(hidden), 1e-5)
        each = [
            FinalizeOperands(r, idx, parts.weights, 2.5, s) for r, s in zip(of_all(routed), of_all(shared), strict=True)
        ]
        want = moe_finalize.reference_norm(each, residual, norm)

        def run_finalize(ctx: Any, parts=parts, residual=residual, norm=norm) -> Any:
            owed = DeferredFinalize(parts, group)
            return moe_finalize.run_norm(owed, residual, norm, subtype="residual", layer=0, ctx=ctx)

        yield "moe_finalize", f"[{tokens}, {hidden}]", run_finalize, want, 2e-2


def main() -> int:
    """Every case on every path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--hidden", type=int, default=0, help="default: 4096, on the CPU 256")
    parser.add_argument("--paths", default="")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    local = int(os.environ["LOCAL_RANK"])
    if on_gpu:
        torch.cuda.set_device(local)
        dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    else:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    group = SymmetricGroup(capacity=256 << 20) if on_gpu else ProcessGroup()
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    draw = Inputs(group.rank, device, torch.bfloat16 if on_gpu else torch.float32)
    bad, ran, why = [], set(), {}
    paths = options.paths.split(",") if options.paths else PATHS
    for boundary, what, run, want, limit in cases(draw, group, options.hidden or (4096 if on_gpu else 256)):
        for path in paths:
            ctx = make_context(group, device, PathChoice.parse(f"{boundary}={path}"))
            got = error(run(ctx), want)
            row = ctx.recorder.rows[0]
            ran.add(row.path)
            why.setdefault(path, row.declined)
            ok = group.agree([got <= limit])[0]
            if not ok:
                bad.append(f"{boundary} {what} {path}")
            if group.rank == 0:
                state = "ok" if ok else f"OVER {limit:g}"
                print(
                    f"{boundary:12} {what:32} {path:10} ran {row.path:10} {got:9.2e} {state} {row.declined}", flush=True
                )
    silent = [path for path in paths if path != "auto" and path not in ran and not why[path]]
    dist.barrier()
    dist.destroy_process_group()
    if group.rank == 0:
        print(f"{len(bad)} over their limits {bad[:5]}; never ran and said nothing: {silent}; ran: {sorted(ran)}")
    return 1 if bad or silent else 0


if __name__ == "__main__":
    sys.exit(main())
