"""mhc_post_pre over real GPUs: is it right, how fast is it? For any number of ranks of one host, at hidden 4096.

    torchrun --nproc-per-node 2 benchmarks/tp_post_pre.py --out DIR [--only correct,time] [--seconds 60]

correct  a chain of SITES sites x replays of a graph, inputs new in every replay, ranks late by random amounts: streams
         bit for bit those of the sum in rank order and the separate mHC post, what is read of them against the
         separate read of the same streams
time     microseconds a site, as benchmarks/tp.py has them (copies of the inputs subtracted, cold L2, ranks meet before
         each replay). Arms: nccl (all-reduce, post, projection, rest of the read: 4 launches), fused (all-reduce + post
         in one: 3), joined (2)
Every site has a projection of its own. Writes tp.json as it goes (rank 0).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from timing import captured
from tp import BF16, LATEST, SITES, Report, Site, all_reduced, apart, in_each, in_rank_order, ranks_meet, timed

from fusionscope.fusion_runtime.comm.symmetric import SymmetricGroup
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.kernels import launch, launch_mhc_pre, launch_norm

Tensor = Any
HIDDEN = 4096


class PostPreSite(Site):
    """A site with the next read's weights, the same on every rank."""

    def __init__(self, tokens: int, seed: int) -> None:
        super().__init__(tokens, HIDDEN, 4)
        draw = torch.Generator("cuda").manual_seed(seed)
        fn = torch.randn(24, 4 * HIDDEN, generator=draw, device="cuda").mul_((4 * HIDDEN) ** -0.5)
        base, norm = (
            torch.randn(24, generator=draw, device="cuda") / 2,
            torch.rand(HIDDEN, generator=draw, device="cuda"),
        )
        self.read = HyperWeights(fn, torch.full((3,), 0.5, device="cuda"), base, norm.to(BF16), 1e-5)


def read_apart(site: PostPreSite, new: Tensor) -> Any:
    return new, *launch_mhc_pre.read(new, launch_mhc_pre.project(new, site.read.fn), site.read)


def joined(site: PostPreSite, group: SymmetricGroup, beside: Any = None, delays: Tensor | None = None) -> Any:
    """What the path does: new streams, then what is read of them."""
    tokens = site.x.shape[0]
    tile = launch_mhc_pre.tile_for(tokens, HIDDEN)
    channel = group.channel(tokens, HIDDEN, BF16, tile.block)
    operands = beside or (site.streams, site.post, site.comb)
    new, sums = launch_mhc_pre.post_and_project(site.x, *operands, site.read.fn, channel, tile, delays=delays)
    return new, *launch_mhc_pre.read(new, sums, site.read)


def check_chain(report: Report, group: SymmetricGroup, tokens: int, replays: int) -> None:
    """Streams and coefficients of every site are the next one's."""
    sites = [PostPreSite(tokens, site) for site in range(SITES)]
    same = partial(torch.randn, generator=torch.Generator("cuda").manual_seed(0), device="cuda")
    first = same(tokens, 4, HIDDEN).to(BF16), same(tokens, 4).sigmoid(), same(tokens, 4, 4).softmax(1)
    delays = torch.zeros(SITES, group.size, dtype=torch.int32, device="cuda")

    def chain() -> list[Any]:
        kept, beside = [], first
        for site, late in zip(sites, delays, strict=True):
            made = joined(site, group, beside, late)
            kept.append(made)
            beside = made[0], made[2], made[3]
        return kept

    for site in sites:
        site.x.normal_()
    graph = captured(chain)
    differing, off = 0, 0.0
    for _ in range(replays):
        for site in sites:
            site.x.normal_()
        delays.random_(0, LATEST)
        torch.cuda._sleep(int(torch.randint(200_000, (1,))))
        graph.replay()
        beside = first
        for site, (new, *read) in zip(sites, graph.kept, strict=True):
            want = launch_norm.mhc_post(in_rank_order(site.x, group), *beside)
            differing += int((apart(new, want) != 0).sum())
            pairs = zip(read, read_apart(site, want)[1:], strict=True)
            off = max(off, *(float((a.float() - b.float()).norm() / b.float().norm()) for a, b in pairs))
            beside = new, read[1], read[2]
    torch.cuda.synchronize()
    graph.reset()
    ok = group.agree([differing == 0 and off < 2e-3])[0]
    report.add(what="correct", tokens=tokens, sites=SITES, replays=replays, differing=differing, read_off=off, ok=ok)


def bench(report: Report, group: SymmetricGroup, before: Callable[[], None], tokens: int) -> None:
    """One number of tokens: every arm."""
    sites = [PostPreSite(tokens, site) for site in range(SITES)]
    arms: dict[str, Callable[[PostPreSite], Any]] = {
        "copies": lambda site: None,
        "nccl": lambda site: read_apart(
            site, launch_norm.mhc_post(all_reduced(site), site.streams, site.post, site.comb)
        ),
        "fused": lambda site: read_apart(
            site,
            launch.ar_hc_post(site.x, site.streams, site.post, site.comb, group.channel(tokens, HIDDEN, BF16)),
        ),
        "joined": lambda site: joined(site, group),
    }
    chains = {name: in_each(sites, call) for name, call in arms.items()}
    timed(report, before, "mhc_post_pre", tokens, HIDDEN, chains)


def main() -> None:
    """Everything that --only names, until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="correct,time")
    parser.add_argument("--tokens", default="1,4,16,2,8,32,64,128")
    parser.add_argument("--replays", type=int, default=10, help="of the checks")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local), timeout=timedelta(seconds=60))
    torch.manual_seed(dist.get_rank())
    group = SymmetricGroup(capacity=1 << 28)
    report = Report(group, options.out, options.seconds)
    if "correct" in options.only:
        for tokens in (1, 2, 4, 16):
            check_chain(report, group, tokens, options.replays)
    before = ranks_meet(group)
    for tokens in (int(t) for t in options.tokens.split(",")) if "time" in options.only else ():
        if not report.late():
            bench(report, group, before, tokens)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
