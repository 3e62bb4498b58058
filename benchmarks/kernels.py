"""How fast are the kernels of one GPU? Ours against FlashInfer and against separate launches, beside their floors.

    python benchmarks/kernels.py [--only norm,post,loopback] [--tokens 1,4,16] [--hidden 4096] [--seconds 150] --out DIR

Every arm is a CUDA graph of SITES sites, each with buffers and weights of its own; the L2 cache is emptied before each
replay, arms take turns, medians count. A site first copies its inputs into place, as its producer would leave them; the
arm `copies` does that alone and is subtracted. Ratios are of one run. Writes kernels.json as it goes, and kernels.md.

norm      add + RMSNorm at one rank: plain, with FP8 of a static scale, with FP8 in groups of 128
post      mHC post at one rank
loopback  all-reduce + norm and all-reduce + mHC post of 4 emulated ranks in place: each site between two products with
          cold weights; the arm `none` has the products alone, `reduce` and `after` one of split's two launches each
Arms: ours/… (warps of a program, or its columns x warps), flashinfer and flashinfer+pdl (where it is installed), split
(one launch per operation), launch (a kernel that does nothing: the launch floor).
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from timing import Cold, Report, bandwidth, captured, per_site, replay_times

from fusionscope.fusion_runtime.comm.channel import power_of_two
from fusionscope.fusion_runtime.comm.loopback import Loopback
from fusionscope.fusion_runtime.decode import cuda_ops
from fusionscope.fusion_runtime.kernels import launch, launch_norm
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.quant import FP8_STATIC_TENSOR, FP8_TOKEN_GROUP_128, InputQuant

Tensor = Any
BF16 = torch.bfloat16
SITES = 48
WARPS = (8, 16, 32)
EPS = 1e-5


@triton.jit
def nothing_kernel(x):
    """The launch floor."""


def timed(
    report: Report, what: str, tokens: int, hidden: int, moved: int, chains: dict[str, Callable[[], Any]]
) -> None:
    """Captures what can be captured, times all arms, writes one row."""
    graphs, failed = {}, {}
    for name, chain in chains.items():
        try:
            graphs[name] = captured(chain)
        except Exception as error:
            traceback.print_exc()
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    raw = per_site(replay_times(graphs, before=Cold()), SITES)
    base = raw.get("copies", raw.get("none", 0.0))
    net = {name: value - base for name, value in raw.items() if name not in ("copies", "none")}
    report.add(
        what=what,
        tokens=tokens,
        hidden=hidden,
        floor_us=moved / report.head["bytes_per_second"] * 1e6,
        **net,
        raw=raw,
        failed=failed,
    )


def flashinfer() -> Any:
    """The library, or None where it is missing."""
    try:
        import flashinfer
        import flashinfer.mhc
        import flashinfer.norm
    except Exception as error:
        print(f"no flashinfer: {error}")
        return None
    return flashinfer


def in_each(sites: list[Any], call: Callable[[Any], Any]) -> Callable[[], list[Any]]:
    """A chain: the site's inputs into place, then the call."""

    def chain() -> list[Any]:
        kept = []
        for site in sites:
            site.place()
            kept.append(call(site))
        return kept

    return chain


class NormSite:
    """One site's buffers; x and residual lie side by side, so that one copy places both."""

    def __init__(self, tokens: int, hidden: int) -> None:
        self.source = torch.randn(2, tokens, hidden, device="cuda").to(BF16)
        self.both = torch.empty_like(self.source)
        self.x, self.residual = self.both
        self.weight = torch.randn(hidden, device="cuda").to(BF16)
        self.norm = Norm(self.weight, EPS)
        self.fp8 = torch.empty(tokens, hidden, dtype=torch.float8_e4m3fn, device="cuda")

    def place(self) -> None:
        self.both.copy_(self.source)


def split_norm(site: NormSite, then: Callable[[Tensor], Any] | None = None) -> Any:
    """Add, norm [, quantise]: a launch each."""
    total = cuda_ops.add(site.x, site.residual)
    normed = cuda_ops.rmsnorm(total, site.weight, EPS)
    return total, normed if then is None else then(normed)


def norm_arms(lib: Any, quant: InputQuant | None) -> dict[str, Callable[[NormSite], Any]]:
    arms: dict[str, Callable[[NormSite], Any]] = {"launch": lambda site: nothing_kernel[(1,)](site.x)}
    for warps in WARPS:
        arms[f"ours/{warps}"] = partial(_ours_norm, quant=quant, warps=warps)
    if quant is None:
        arms["split"] = split_norm
    else:
        arms["split"] = lambda site: split_norm(site, lambda y: cuda_ops.quantise(y, quant))
        arms["split-2"] = lambda site: cuda_ops.quantise(
            launch_norm.add_rmsnorm(site.x, site.residual, site.norm)[0], quant
        )
    for pdl in (False, True) if lib is not None else ():
        name = f"flashinfer{'+pdl' if pdl else ''}"
        if quant is None:
            arms[name] = lambda s, pdl=pdl: lib.norm.fused_add_rmsnorm(s.x, s.residual, s.weight, EPS, enable_pdl=pdl)
        elif quant.key == FP8_STATIC_TENSOR:
            arms[name] = lambda s, pdl=pdl: lib.norm.fused_add_rmsnorm_quant(
                s.fp8, s.x, s.residual, s.weight, quant.scale, EPS, enable_pdl=pdl
            )
    return arms


def _ours_norm(site: NormSite, quant: InputQuant | None, warps: int) -> Any:
    return launch_norm.add_rmsnorm(site.x, site.residual, site.norm, quant, warps)


def bench_norm(report: Report, lib: Any, tokens: int, hidden: int) -> None:
    """Add + RMSNorm, three outputs."""
    sites = [NormSite(tokens, hidden) for _ in range(SITES)]
    static = InputQuant(FP8_STATIC_TENSOR, torch.tensor([0.02], device="cuda"))
    for what, quant in (("norm", None), ("norm+fp8", static), ("norm+fp8_groups", InputQuant(FP8_TOKEN_GROUP_128))):
        written = 2 + (1 if quant else 2)
        moved = tokens * hidden * (4 + written) + 2 * hidden
        chains = {"copies": in_each(sites, lambda site: None)}
        chains |= {name: in_each(sites, call) for name, call in norm_arms(lib, quant).items()}
        timed(report, what, tokens, hidden, moved, chains)


class PostSite:
    """One mHC post; x and the streams lie side by side."""

    def __init__(self, tokens: int, hidden: int) -> None:
        self.source = torch.randn(5 * tokens * hidden, device="cuda").to(BF16)
        self.all = torch.empty_like(self.source)
        self.x = self.all[: tokens * hidden].view(tokens, hidden)
        self.streams = self.all[tokens * hidden :].view(tokens, 4, hidden)
        self.post, self.comb = torch.rand(tokens, 4, device="cuda"), torch.rand(tokens, 4, 4, device="cuda")

    def place(self) -> None:
        self.all.copy_(self.source)


def bench_post(report: Report, lib: Any, tokens: int, hidden: int) -> None:
    """mHC post, some shapes of programs."""
    sites = [PostSite(tokens, hidden) for _ in range(SITES)]
    chains = {"copies": in_each(sites, lambda s: None), "launch": in_each(sites, lambda s: nothing_kernel[(1,)](s.x))}
    for block, warps in ((256, 1), (512, 2), (512, 4), (1024, 4)):
        call = partial(_ours_post, block=block, warps=warps)
        chains[f"ours/{block}x{warps}"] = in_each(sites, call)
    if lib is not None:
        chains["flashinfer"] = in_each(sites, lambda s: lib.mhc.mhc_post(s.x, s.streams, s.post, s.comb))
    moved = tokens * (hidden * (2 + 8 + 8) + 80)
    timed(report, "post", tokens, hidden, moved, chains)


def _ours_post(site: PostSite, block: int, warps: int) -> Any:
    return launch_norm.mhc_post(site.x, site.streams, site.post, site.comb, block, warps)


class Layers:
    """Products with cold weights and a boundary after each: what a decode graph is around a site."""

    def __init__(self, tokens: int, hidden: int, inner: int = 1024) -> None:
        self.group = Loopback(4, "cuda")
        self.inner, self.tokens, self.hidden = inner, tokens, hidden
        self.up = torch.randn(SITES, inner, hidden, device="cuda").mul_(inner**-0.5).to(BF16)
        self.norms = [Norm(torch.rand(hidden, device="cuda").to(BF16), EPS) for _ in range(SITES)]
        self.first = torch.randn(tokens, hidden, device="cuda").to(BF16)
        self.streams = torch.randn(tokens, 4, hidden, device="cuda").to(BF16)
        self.post, self.comb = torch.rand(tokens, 4, device="cuda"), torch.rand(tokens, 4, 4, device="cuda").softmax(1)

    def chain(self, boundary: Callable[[Tensor, int, Tensor], tuple[Tensor, Tensor]], carried: Tensor) -> Any:
        x, kept = self.first, []
        for site in range(SITES):
            partial_sum = torch.mm(x[:, : self.inner], self.up[site])
            x, carried = boundary(partial_sum, site, carried)
            kept.append(carried)
        return kept

    def none(self, x: Tensor, site: int, carried: Tensor) -> tuple[Tensor, Tensor]:
        return x, carried

    def reduce(self, x: Tensor, site: int, carried: Tensor) -> tuple[Tensor, Tensor]:
        return self.group.all_reduce(x), carried

    def norm_alone(self, x: Tensor, site: int, carried: Tensor) -> tuple[Tensor, Tensor]:
        return launch_norm.add_rmsnorm(x, carried, self.norms[site])

    def post_alone(self, x: Tensor, site: int, carried: Tensor) -> tuple[Tensor, Tensor]:
        new = launch_norm.mhc_post(x, carried, self.post, self.comb)
        return new[:, 0], new

    def split_norm(self, x: Tensor, site: int, carried: Tensor) -> tuple[Tensor, Tensor]:
        return launch_norm.add_rmsnorm(self.group.all_reduce(x), carried, self.norms[site])

    def fused_norm(self, x: Tensor, site: int, carried: Tensor, block: int) -> tuple[Tensor, Tensor]:
        channel = self.group.channel(self.tokens, self.hidden, BF16, block)
        return launch.all_reduce_norm(x, carried, self.norms[site], channel)

    def split_post(self, x: Tensor, site: int, carried: Tensor) -> tuple[Tensor, Tensor]:
        new = launch_norm.mhc_post(self.group.all_reduce(x), carried, self.post, self.comb)
        return new[:, 0], new

    def fused_post(self, x: Tensor, site: int, carried: Tensor, block: int) -> tuple[Tensor, Tensor]:
        channel = self.group.channel(self.tokens, self.hidden, BF16, block)
        new = launch.ar_hc_post(x, carried, self.post, self.comb, channel)
        return new[:, 0], new


def bench_loopback(report: Report, lib: Any, tokens: int, hidden: int) -> None:
    """Four emulated ranks, in place."""
    layers = Layers(tokens, hidden)
    residual = torch.randn(tokens, hidden, device="cuda").to(BF16)
    for what, carried in (("loopback4 ar+norm", residual), ("loopback4 ar+post", layers.streams)):
        split, after, fused = (
            (layers.split_norm, layers.norm_alone, layers.fused_norm)
            if "norm" in what
            else (layers.split_post, layers.post_alone, layers.fused_post)
        )
        arms = {"none": layers.none, "reduce": layers.reduce, "after": after, "split": split}
        for block in (512, 1024, 2048, power_of_two(hidden)) if "norm" in what else (256, 512, 1024):
            arms[f"ours/{block}"] = partial(fused, block=block)
        chains = {name: partial(layers.chain, arm, carried) for name, arm in arms.items()}
        width = 1 if "norm" in what else 4
        moved = tokens * hidden * 2 * (4 * 3 + 2 * width + (1 if width == 1 else 0))
        timed(report, what, tokens, hidden, moved, chains)


BENCHES = {"norm": bench_norm, "post": bench_post, "loopback": bench_loopback}


def main() -> None:
    """Every bench over tokens and hiddens, until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(BENCHES))
    parser.add_argument("--tokens", default="1,2,4,8,16,32,64,128")
    parser.add_argument("--hidden", default="4096,6144,7168")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    head = {"sites": SITES, "bytes_per_second": bandwidth()}
    report, lib = Report(options.out / "kernels.json", options.seconds, **head), flashinfer()
    for hidden in (int(h) for h in options.hidden.split(",")):
        for tokens in (int(t) for t in options.tokens.split(",")):
            for name in options.only.split(","):
                if report.late:
                    print(f"out of time before {name} [{tokens}, {hidden}]")
                    continue
                try:
                    BENCHES[name](report, lib, tokens, hidden)
                except Exception:
                    traceback.print_exc()


if __name__ == "__main__":
    main()
