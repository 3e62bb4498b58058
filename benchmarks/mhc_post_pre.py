"""What does it gain to join an attention's exit to the read behind it? mhc_post_pre on one GPU, four emulated ranks.

    python benchmarks/mhc_post_pre.py [--only sites,model] [--tokens 1,4,16] [--seconds 100] --out FILE.json

sites  a graph of SITES exits, each between a product with cold weights and the next one, with a projection of its own
       (all of them are more than the L2 cache, which is emptied before each replay). Streams and coefficients run
       through, as in a forward. Before the times: joined and split must have the same streams, bit for bit. Arms:
       none     the products alone, subtracted
       split    all-reduce, mHC post, projection, the rest of the read: 4 launches
       fused    all-reduce + post in one, then as split: 3
       apart    all-reduce, post + projection in one, the rest of the read: 3
       joined/COLUMNSxTOKENSxWARPS of a program    all-reduce + post + projection in one, the rest of the read: 2
model  glm-5.3-flash, its first layers (--layers) as one rank of 4, captured with several choices of paths; several
       captures of each, since captures differ, replays taking turns, untraced. Microseconds a forward.
Ratios are of one run. Writes FILE as it goes. The time of a link is not in it.
"""

from __future__ import annotations

import argparse
import statistics
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import Cold, Report, captured, per_site, replay_times

from fusionscope.fusion_runtime.comm.channel import Channel
from fusionscope.fusion_runtime.comm.loopback import Loopback, sync_channel
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.kernels import launch, launch_mhc_pre, launch_norm
from fusionscope.fusion_runtime.kernels.launch_mhc_pre import Tile

Tensor = Any
BF16 = torch.bfloat16
HIDDEN = 4096
SITES = 48
REPLAYS = 25
MODEL_BATCHES = (1, 4, 16)
CAPTURES = 3

TILES = (
    Tile(16, 1, 4), Tile(32, 1, 4), Tile(32, 1, 8), Tile(64, 1, 8), Tile(16, 2, 4), Tile(32, 2, 4), Tile(64, 2, 8),
    Tile(16, 4, 4), Tile(32, 4, 4), Tile(32, 4, 8), Tile(64, 4, 8), Tile(32, 8, 8), Tile(64, 8, 8),
)  # fmt: skip
"""What a program may have; at each number of tokens those are tried that leave few rows empty."""

PATHS = (
    "split",
    "mhc_post=triton",
    "mhc_post:attn_exit=triton",
    "mhc_post_pre=triton",
    "mhc_post=triton,mhc_post_pre=triton",
)


def tiles(tokens: int) -> list[Tile]:
    """Those worth trying: no row of programs for tokens that are not there, no thousands of programs."""
    return [t for t in TILES if t.rows <= tokens and t.rows >= min(tokens, 4) // 2 and tokens <= 8 * t.rows * t.rows]


Carried = tuple[Tensor, Tensor, Tensor]
Boundary = Callable[[Tensor, int, Carried], tuple[Tensor, Carried]]


class Exits:
    """Products with cold weights and an exit with the next read after each."""

    def __init__(self, tokens: int, inner: int = 1024) -> None:
        self.group, self.tokens, self.inner = Loopback(4, "cuda"), tokens, inner
        self.up = torch.randn(SITES, inner, HIDDEN, device="cuda").mul_(inner**-0.5).to(BF16)
        self.reads = [self._read() for _ in range(SITES)]
        self.first = torch.randn(tokens, HIDDEN, device="cuda").to(BF16)
        streams = torch.randn(tokens, 4, HIDDEN, device="cuda").to(BF16)
        comb = torch.rand(tokens, 4, 4, device="cuda").softmax(1)
        self.tile = launch_mhc_pre.tile_for(tokens, HIDDEN)
        self.alone = sync_channel(1, tokens, HIDDEN, BF16, "cuda", self.tile.block)
        self.carried: Carried = (streams, torch.rand(tokens, 4, device="cuda"), comb)

    def _read(self) -> HyperWeights:
        fn = torch.randn(24, 4 * HIDDEN, device="cuda").mul_((4 * HIDDEN) ** -0.5)
        base, norm = torch.randn(24, device="cuda").mul_(0.5), torch.rand(HIDDEN, device="cuda").to(BF16)
        return HyperWeights(fn, torch.full((3,), 0.5, device="cuda"), base, norm, 1e-5)

    def chain(self, boundary: Boundary) -> list[Any]:
        x, carried, kept = self.first, self.carried, []
        for site in range(SITES):
            x, carried = boundary(torch.mm(x[:, : self.inner], self.up[site]), site, carried)
            kept.append((x, carried))
        return kept

    def none(self, x: Tensor, site: int, carried: Carried) -> tuple[Tensor, Carried]:
        return x, carried

    def split(self, x: Tensor, site: int, carried: Carried) -> tuple[Tensor, Carried]:
        return self._read_apart(launch_norm.mhc_post(self.group.all_reduce(x), *carried), site)

    def fused(self, x: Tensor, site: int, carried: Carried) -> tuple[Tensor, Carried]:
        channel = self.group.channel(self.tokens, HIDDEN, BF16)
        return self._read_apart(launch.ar_hc_post(x, *carried, channel), site)

    def _read_apart(self, new: Tensor, site: int) -> tuple[Tensor, Carried]:
        read = self.reads[site]
        x, post, comb = launch_mhc_pre.read(new, launch_mhc_pre.project(new, read.fn), read)
        return x, (new, post, comb)

    def apart(self, x: Tensor, site: int, carried: Carried) -> tuple[Tensor, Carried]:
        """As public engines have it: what is joined is the write and the projection, over a channel of one rank."""
        return self._joined(self.group.all_reduce(x), site, carried, self.alone, self.tile)

    def joined(self, x: Tensor, site: int, carried: Carried, tile: Tile) -> tuple[Tensor, Carried]:
        return self._joined(x, site, carried, self.group.channel(self.tokens, HIDDEN, BF16, tile.block), tile)

    def _joined(self, x: Tensor, site: int, carried: Carried, channel: Channel, tile: Tile) -> tuple[Tensor, Carried]:
        read = self.reads[site]
        new, sums = launch_mhc_pre.post_and_project(x, *carried, read.fn, channel, tile)
        x, post, comb = launch_mhc_pre.read(new, sums, read)
        return x, (new, post, comb)


def off(exits: Exits, tile: Tile) -> float:
    """Largest difference of a joined read from the separate one; inf where the streams differ in a bit."""
    x = torch.randn(exits.tokens, HIDDEN, device="cuda").to(BF16)
    mine, (streams, post, comb) = exits.joined(x, 0, exits.carried, tile)
    other, (want, want_post, want_comb) = exits.split(x, 0, exits.carried)
    if not torch.equal(streams.view(torch.int16), want.view(torch.int16)):
        return float("inf")
    pairs = ((mine, other), (post, want_post), (comb, want_comb))
    return max(float((a.float() - b.float()).abs().max()) for a, b in pairs)


def bench_sites(report: Report, tokens: int) -> None:
    """One number of tokens: every arm."""
    exits = Exits(tokens)
    arms: dict[str, Boundary] = {"none": exits.none, "split": exits.split, "fused": exits.fused, "apart": exits.apart}
    differences = {}
    for tile in tiles(tokens):
        name = f"joined/{tile.block}x{tile.rows}x{tile.warps}"
        differences[name] = off(exits, tile)
        arms[name] = partial(exits.joined, tile=tile)
    graphs = {name: captured(partial(exits.chain, arm)) for name, arm in arms.items()}
    raw = per_site(replay_times(graphs, REPLAYS, before=Cold()), SITES)
    net = {name: value - raw["none"] for name, value in raw.items() if name != "none"}
    best = min((name for name in net if name.startswith("joined")), key=lambda name: net[name])
    report.add(
        what="site",
        tokens=tokens,
        **net,
        best=best,
        apart_over_joined=net["apart"] / net[best],
        fused_over_joined=net["fused"] / net[best],
        split_over_joined=net["split"] / net[best],
        off=max(differences.values()),
        raw=raw,
    )


def bench_model(report: Report, layers: int) -> None:
    """Whole forwards, untraced."""
    from fusionscope.fusion_runtime.context import PathChoice
    from fusionscope.fusion_runtime.decode import graph
    from fusionscope.fusion_runtime.decode.model import DecodeModel, make_context
    from fusionscope.fusion_runtime.decode.spec import MODELS

    group, spec = Loopback(4, "cuda"), MODELS["glm-5.3-flash"].truncated(layers)
    contexts = {
        paths: make_context(group, "cuda", PathChoice.parse("" if paths == "split" else paths)) for paths in PATHS
    }
    for batch in MODEL_BATCHES:
        if report.late:
            print(f"out of time before batch {batch}")
            return
        model = DecodeModel(spec, group, batch, 8192, "cuda", contexts["split"])
        forwards = {}
        for count in range(CAPTURES):
            for paths, ctx in contexts.items():
                model.ctx = ctx
                forwards[f"{paths}#{count}"] = graph.capture(model, [256 * count] if count else [])
        nodes = {paths: len(forwards[f"{paths}#0"].kernel_nodes) for paths in PATHS}
        taken = {
            paths: sum(r.path == "triton" for r in forwards[f"{paths}#0"].site_rows if r.boundary == "mhc_post_pre")
            for paths in PATHS
        }
        times = replay_times(forwards, REPLAYS)
        each = {name: statistics.median(values) for name, values in times.items()}
        us = {paths: statistics.median(each[f"{paths}#{k}"] for k in range(CAPTURES)) for paths in PATHS}
        report.add(
            what="model", layers=layers, batch=batch, context=8192, us=us, launches=nodes, joined_sites=taken, raw=each
        )
        del model, forwards
        torch.cuda.empty_cache()


def main() -> None:
    """Every part, until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="sites,model")
    parser.add_argument("--tokens", default="1,4,16,2,8,32,64,128")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.manual_seed(0)
    report = Report(options.out, options.seconds, hidden=HIDDEN, ranks="4, emulated", sites=SITES)
    parts: list[Callable[[], None]] = []
    if "sites" in options.only:
        parts += [partial(bench_sites, report, int(count)) for count in options.tokens.split(",")]
    if "model" in options.only:
        parts.append(partial(bench_model, report, options.layers))
    for part in parts:
        if report.late:
            print("out of time")
            return
        try:
            part()
        except Exception:
            traceback.print_exc()


if __name__ == "__main__":
    main()
