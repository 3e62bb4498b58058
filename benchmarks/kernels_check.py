"""Are the kernels right on a GPU? All ranks resident in one launch, where waiting is real, and against references.

    python benchmarks/kernels_check.py [--sites 100] [--replays 100] [--out FILE.json] [--quick]

1. 100 chained sites x 100 replays of a graph, inputs new in every replay, every rank late by a random number of memory
   reads before it sends: results bit for bit those of a sum in rank order, rounded, and the split kernels after it
2. zeros of both signs, infinities, NaN with every bit set: nothing waits for ever
3. add and RMSNorm, plain and quantised, and mHC post, against float64: relative errors, with limits
Exit code 1 if anything is off. Needs one GPU. --quick: a few sites and no graph, for
PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from timing import captured, machine

from fusionscope.fusion_runtime.comm.loopback import sync_channel
from fusionscope.fusion_runtime.kernels import launch, launch_norm
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import FinalizeOperands
from fusionscope.fusion_runtime.quant import (
    FP8_STATIC_TENSOR,
    FP8_TOKEN_GROUP_128,
    InputQuant,
    dequantise,
)

Tensor = Any
BF16 = torch.bfloat16
RANKS, TOKENS, HIDDEN = 4, 4, 4096
LATEST = 400
"""Reads of memory that a rank is late by at most: some 200 us."""

rows: list[dict[str, Any]] = []


def check(what: str, value: float, limit: float) -> None:
    """One line of the table; NaN is over every limit."""
    ok = value <= limit
    rows.append({"what": what, "value": value, "limit": limit, "ok": ok})
    print(f"  {what:62} {value:10.3g} {'ok' if ok else f'OVER {limit:g}'}", flush=True)


def randn(*shape: int, dtype: Any = BF16, std: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device="cuda") * std).to(dtype)


def in_rank_order(parts: Tensor) -> Tensor:
    """What the kernels promise: a float32 sum in rank order, rounded once."""
    total = torch.zeros_like(parts[0], dtype=torch.float32)
    for part in parts:
        total += part.float()
    return total.to(parts.dtype)


def mixing(tokens: int) -> tuple[Tensor, Tensor]:
    """post and comb that keep streams of about the same size over many sites."""
    return torch.rand(tokens, 4, device="cuda") / 4, torch.rand(tokens, 4, 4, device="cuda").softmax(1)


class Posts:
    """A chain of all-reduce + mHC post."""

    tolerated = 0.0

    def __init__(self, sites: int, channel: Any) -> None:
        self.sites, self.channel = sites, channel
        self.x = torch.empty(sites, RANKS, TOKENS, HIDDEN, dtype=BF16, device="cuda")
        self.streams = randn(TOKENS, 4, HIDDEN)
        self.delays = torch.zeros(sites, RANKS, dtype=torch.int32, device="cuda")
        self.post, self.comb = mixing(TOKENS)

    def fused(self) -> list[Tensor]:
        streams, seen = self.streams, []
        for site in range(self.sites):
            new = launch.ar_hc_post(self.x[site], streams, self.post, self.comb, self.channel, delays=self.delays[site])
            seen.append(new)
            streams = new[site % RANKS]
        return seen

    def split(self) -> list[Tensor]:
        streams, seen = self.streams, []
        for site in range(self.sites):
            streams = launch_norm.mhc_post(in_rank_order(self.x[site]), streams, self.post, self.comb)
            seen.append(streams)
        return seen


class Norms(Posts):
    """A chain of all-reduce + residual + RMSNorm; the residual is compared bit for bit, the norm to one bit.

    A row of several programs sums its squares in another order than one program does.
    """

    tolerated = 1e-3

    def __init__(self, sites: int, channel: Any) -> None:
        super().__init__(sites, channel)
        self.residual, self.norm = randn(TOKENS, HIDDEN), Norm(randn(HIDDEN, std=0.1) + 1, 1e-5)

    def fused(self) -> list[Tensor]:
        residual, seen = self.residual, []
        for site in range(self.sites):
            normed, total = launch.all_reduce_norm(
                self.x[site], residual, self.norm, self.channel, delays=self.delays[site]
            )
            seen += [total, normed]
            residual = total[site % RANKS]
        return seen

    def split(self) -> list[Tensor]:
        residual, seen = self.residual, []
        for site in range(self.sites):
            normed, residual = launch_norm.add_rmsnorm(in_rank_order(self.x[site]), residual, self.norm)
            seen += [residual, normed]
        return seen


class Eager:
    """Stands in for a graph where allocations must not be pooled, so that a memory checker sees their ends."""

    def __init__(self, chain: Any) -> None:
        self.chain, self.kept = chain, chain()

    def replay(self) -> None:
        self.kept = self.chain()


def chained(what: str, chain: Posts, replays: int, eager: bool) -> None:
    """Replays the fused chain with new inputs and compares every site on every rank with the split one."""
    begin = time.perf_counter()
    chain.x.normal_()
    graph = Eager(chain.fused) if eager else captured(chain.fused)
    differing, further, unlike, compared = 0, 0, 0, 0
    for _ in range(replays):
        chain.x.normal_()
        chain.delays.random_(0, LATEST)
        # A rank that is not late at all, now and then all of them.
        chain.delays.mul_((torch.rand_like(chain.delays, dtype=torch.float32) > 0.3).int())
        for out in graph.kept:
            out.fill_(float("nan"))
        graph.replay()
        for got, want in zip(graph.kept, chain.split(), strict=True):
            apart = (got.view(torch.int16).int() - want.view(torch.int16).int()).abs()
            differing, further = differing + (apart != 0).sum(), further + (apart > 1).sum()
            unlike += (got.view(torch.int16) != got[0].view(torch.int16)).sum()
            compared += got.numel()
    torch.cuda.synchronize()
    taken = time.perf_counter() - begin
    what = f"{what}, {compared / 1e6:.0f} M elements"
    check(f"{what}: that differ between ranks ({taken:.0f} s)", float(unlike), 0)
    check(f"{what}: that differ by more than a bit", float(further), 0)
    check(f"{what}: share that differ", float(differing) / compared, chain.tolerated)


def check_odd_values() -> None:
    """Values that a sentinel could be mistaken for."""
    channel = sync_channel(RANKS, TOKENS, HIDDEN, BF16, "cuda")
    x = randn(RANKS, TOKENS, HIDDEN)
    x[:, 0] = -0.0
    x.view(torch.int16)[1, 1, :99] = -1
    x[2, 2, :50] = float("nan")
    x[3, 3, :7] = float("inf")
    for turn in range(3):
        got = launch.all_reduce(x, channel)
        torch.cuda.synchronize()
        want = in_rank_order(x)
        alike = (got == want) | (got.isnan() & want.isnan())
        check(f"odd values, exchange {turn + 1}: elements that differ", float((~alike).sum()), 0)


def check_finalize() -> None:
    """The fused finalizes against float64."""
    experts, k = 64, 8
    gemm2, shared = randn(RANKS, experts, HIDDEN), randn(RANKS, TOKENS, HIDDEN)
    idx = torch.randint(-1, experts, (TOKENS, k), device="cuda", dtype=torch.int32)
    parts = FinalizeOperands(gemm2, idx, torch.rand(TOKENS, k, device="cuda"), 2.5, shared)
    rows_ = gemm2.double()[:, idx.clamp(min=0).long()].masked_fill((idx < 0)[None, :, :, None], 0)
    own = (2.5 * (parts.weights.double()[None, :, :, None] * rows_).sum(2) + shared.double()).to(BF16)
    streams, (post, comb) = randn(TOKENS, 4, HIDDEN), mixing(TOKENS)
    channel = sync_channel(RANKS, TOKENS, HIDDEN, BF16, "cuda")
    got = launch.moe_finalize_ar_hc_post(parts, streams, post, comb, channel)
    want = launch_norm.mhc_post(in_rank_order(own), streams, post, comb)
    check("finalize + all-reduce + mHC post", error(got, want.expand_as(got)), 2e-3)
    channel = sync_channel(RANKS, TOKENS, HIDDEN, BF16, "cuda", 1024)
    residual, norm = randn(TOKENS, HIDDEN), Norm(randn(HIDDEN), 1e-5)
    got, total = launch.moe_finalize_ar_norm(parts, residual, norm, channel)
    want, want_total = launch_norm.add_rmsnorm(in_rank_order(own), residual, norm)
    check("finalize + all-reduce + norm", error(got, want.expand_as(got)), 3e-3)
    check("finalize + all-reduce + norm: residual", error(total, want_total.expand_as(total)), 3e-3)


def error(got: Tensor, want: Tensor) -> float:
    got, want = got.double(), want.double()
    return float((got - want).norm() / want.norm().clamp(min=1e-30))


def check_norms(tokens: int, hidden: int) -> None:
    """One rank's norms and mHC post against float64."""
    x, residual, norm = randn(tokens, hidden), randn(tokens, hidden), Norm(randn(hidden), 1e-5, 1.0)
    total = x.double() + residual.double()
    y = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-5) * (norm.weight.double() + 1)
    here = f"[{tokens}, {hidden}]"
    static = InputQuant(FP8_STATIC_TENSOR, torch.tensor([0.02], device="cuda"))
    for quant, limit in ((None, 3e-3), (static, 4e-2), (InputQuant(FP8_TOKEN_GROUP_128), 4e-2)):
        out, new = launch_norm.add_rmsnorm(x, residual, norm, quant)
        got = out if quant is None else dequantise(out)
        name = quant.key if quant else "add + norm"
        # A static scale cuts off what is too large for it.
        want = y if quant is not static else y.clamp(-448 * 0.02, 448 * 0.02)
        check(f"{name} {here}", error(got, want), limit)
        check(f"{name} {here}: residual's differing bits", float((new != total.to(BF16)).sum()), 0)
    streams, (post, comb) = randn(tokens, 4, hidden), mixing(tokens)
    mixed = torch.einsum("tkj,tkh->tjh", comb.double(), streams.double())
    want = post.double()[:, :, None] * x.double()[:, None, :] + mixed
    check(f"mhc_post {here}", error(launch_norm.mhc_post(x, streams, post, comb), want), 3e-3)


def main() -> int:
    """Everything, then the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--replays", type=int, default=100)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    sites, replays = (4, 2) if options.quick else (options.sites, options.replays)
    torch.manual_seed(0)
    check_odd_values()
    chained(
        f"{sites} posts x {replays} replays, ranks late",
        Posts(sites, sync_channel(RANKS, TOKENS, HIDDEN, BF16, "cuda")),
        replays,
        options.quick,
    )
    for block in (4096, 1024, 512):
        chained(
            f"{sites} norms x {replays} replays, {4096 // block} programs a row",
            Norms(sites, sync_channel(RANKS, TOKENS, HIDDEN, BF16, "cuda", block)),
            replays,
            options.quick,
        )
    check_finalize()
    for tokens, hidden in ((1, 4096),) if options.quick else ((1, 4096), (17, 6144), (128, 7168)):
        check_norms(tokens, hidden)
    bad = [row["what"] for row in rows if not row["ok"]]
    if options.out:
        options.out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    print("all ok" if not bad else f"OFF: {bad}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
