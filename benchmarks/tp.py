"""Fused boundaries over real GPUs: are they right, how fast are they? For any number of ranks of one host.

    torchrun --nproc-per-node 2 benchmarks/tp.py --out DIR [--only correct,norm,post] [--seconds 200]
    torchrun --nproc-per-node 8 benchmarks/tp.py --dry          # on CPUs: do the sizes fit, do the ranks agree?

correct   chained sites x replays of a graph, inputs new in every replay, ranks late by random amounts: bit for bit the
          sum in rank order, rounded, and the kernels of one rank after it (norms over several programs: to one bit)
norm      all-reduce + residual + RMSNorm, tokens x hidden
post      all-reduce + mHC post
Arms are CUDA graphs of SITES sites with buffers and weights of their own; a site first copies its inputs into place, as
its producer would leave them; the arm `copies` does that alone and is subtracted. Before each replay the L2 cache is
emptied and the ranks meet. Medians of the replays, mean of the ranks. Arms:
nccl+norm, nccl+post   NCCL, then FlashInfer's norm (ours where it is missing) or our mHC post: split
oneshot+…              torch's one-shot all-reduce over symmetric memory, then the same: the second split
ours/N                 our kernels, N columns a program
flashinfer, +pdl       FlashInfer's trtllm fusion, without and with programmatic dependent launch
NVLink multicast is not used. Writes tp.json as it goes (rank 0).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from timing import Cold, captured, machine, replay_times

from fusionscope.fusion_runtime.comm.channel import Channel, counters, inbox_bytes, power_of_two, row_block
from fusionscope.fusion_runtime.comm.process_group import ProcessGroup
from fusionscope.fusion_runtime.comm.symmetric import CAPACITY, SymmetricGroup
from fusionscope.fusion_runtime.kernels import launch, launch_norm
from fusionscope.fusion_runtime.norms import Norm

Tensor = Any
BF16 = torch.bfloat16
SITES = 40
EPS = 1e-5
MOST_TOKENS = 128
LATEST = 300
"""Reads of memory by which a rank sends late at most."""


class Report:
    """Rows as they come; rank 0 keeps them on disk."""

    def __init__(self, group: Any, folder: Path, seconds: float) -> None:
        self.group, self.path, self.until, self.rows = group, folder / "tp.json", time.monotonic() + seconds, []
        self.head = {"what": "microseconds a site", "ranks": group.size, "sites": SITES, "machine": machine()}

    def late(self) -> bool:
        """Whether any rank's time is over: the same answer on all."""
        return not self.group.agree([time.monotonic() < self.until])[0]

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        if self.group.rank == 0:
            self.path.write_text(json.dumps({**self.head, "rows": self.rows}, indent=1) + "\n")
            short = {k: round(v, 2) if isinstance(v, float) else v for k, v in row.items() if k != "by_rank"}
            print(short, flush=True)


def ranks_meet(group: Any) -> Callable[[], None]:
    """What comes before each replay: an empty cache, then a collective, so that no rank begins earlier."""
    cold, token = Cold(), torch.zeros(1, device="cuda")

    def before() -> None:
        cold()
        dist.all_reduce(token)

    return before


def timed(report: Report, before: Callable[[], None], what: str, tokens: int, hidden: int,
          chains: dict[str, Callable[[], Any]]) -> None:  # fmt: skip
    """Times all arms and writes one row: net of the copies, mean of the ranks."""
    graphs = {name: captured(chain) for name, chain in chains.items()}
    mine = {n: statistics.median(t) / SITES for n, t in replay_times(graphs, before=before).items()}
    everyone: list[Any] = [None] * report.group.size
    dist.all_gather_object(everyone, mine)
    mean = {name: statistics.fmean(one[name] for one in everyone) for name in mine}
    net = {name: mean[name] - mean["copies"] for name in mean if name != "copies"}
    report.add(what=what, tokens=tokens, hidden=hidden, copies=mean["copies"], **net, by_rank=everyone)
    for graph in graphs.values():
        graph.reset()


def in_each(sites: list[Any], call: Callable[[Any], Any]) -> Callable[[], list[Any]]:
    """A chain: the site's inputs into place, then the call."""

    def chain() -> list[Any]:
        kept = []
        for site in sites:
            site.both.copy_(site.source)
            kept.append(call(site))
        return kept

    return chain


def flashinfer() -> Any:
    """The library, or None where it is missing."""
    try:
        import flashinfer.comm
        import flashinfer.norm
    except Exception as error:
        print(f"no flashinfer: {error}")
        return None
    return flashinfer


class Site:
    """Buffers of one site: x beside what it is added to, `rows` rows of it a token."""

    def __init__(self, tokens: int, hidden: int, rows: int) -> None:
        self.source = torch.randn((1 + rows) * tokens * hidden, device="cuda").to(BF16)
        self.both = torch.empty_like(self.source)
        self.x = self.both[: tokens * hidden].view(tokens, hidden)
        self.beside = self.both[tokens * hidden :].view(tokens, hidden) if rows == 1 else None
        self.streams = self.both[tokens * hidden :].view(tokens, rows, hidden) if rows > 1 else None
        self.norm = Norm(torch.rand(hidden, device="cuda").to(BF16), EPS)
        self.post, self.comb = torch.rand(tokens, 4, device="cuda"), torch.rand(tokens, 4, 4, device="cuda")
        self.normed, self.total = torch.empty_like(self.x), torch.empty_like(self.x)


class OneShot:
    """torch's one-shot all-reduce; its input must lie in symmetric memory, so the site's x is copied there."""

    def __init__(self, tokens: int, hidden: int) -> None:
        import torch.distributed._symmetric_memory as symmetric

        self.buffer = symmetric.empty(
            tokens * hidden, dtype=BF16, device=torch.device("cuda", torch.cuda.current_device())
        )
        symmetric.rendezvous(self.buffer, dist.group.WORLD)
        self.x = self.buffer.view(tokens, hidden)

    def __call__(self, site: Site) -> Tensor:
        return torch.ops.symm_mem.one_shot_all_reduce(self.x, "sum", dist.group.WORLD.group_name)


def all_reduced(site: Site) -> Tensor:
    dist.all_reduce(site.x)
    return site.x


def norm_after(lib: Any, site: Site, summed: Tensor) -> Any:
    """The separate norm of the split arms."""
    if lib is None:
        return launch_norm.add_rmsnorm(summed, site.beside, site.norm)
    return lib.norm.fused_add_rmsnorm(summed, site.beside, site.norm.weight, EPS)


def post_after(site: Site, summed: Tensor) -> Tensor:
    return launch_norm.mhc_post(summed, site.streams, site.post, site.comb)


def ours_norm(site: Site, channel: Channel) -> Any:
    return launch.all_reduce_norm(site.x, site.beside, site.norm, channel)


def ours_post(site: Site, channel: Channel) -> Any:
    return launch.ar_hc_post(site.x, site.streams, site.post, site.comb, channel)


def theirs(site: Site, lib: Any, workspace: Any, pdl: bool) -> Any:
    return lib.comm.allreduce_fusion(
        input=site.x,
        workspace=workspace,
        pattern=lib.comm.AllReduceFusionPattern.kARResidualRMSNorm,
        launch_with_pdl=pdl,
        residual_out=site.total,
        norm_out=site.normed,
        residual_in=site.beside,
        rms_gamma=site.norm.weight,
        rms_eps=EPS,
    )


class Bench:
    """What the timed parts share: the library's workspaces, one a hidden size, and the way to meet."""

    def __init__(self, group: SymmetricGroup, report: Report) -> None:
        self.group, self.report, self.lib, self.before = group, report, flashinfer(), ranks_meet(group)
        self.workspaces: dict[int, Any] = {}

    def workspace(self, hidden: int) -> Any:
        if hidden not in self.workspaces:
            self.workspaces[hidden] = self.lib.comm.create_allreduce_fusion_workspace(
                backend="trtllm",
                world_size=self.group.size,
                rank=self.group.rank,
                max_token_num=MOST_TOKENS,
                hidden_dim=hidden,
                dtype=BF16,
            )
        return self.workspaces[hidden]

    def norm(self, tokens: int, hidden: int) -> None:
        sites, one_shot = [Site(tokens, hidden, 1) for _ in range(SITES)], OneShot(tokens, hidden)
        after = partial(norm_after, self.lib)
        arms: dict[str, Callable[[Site], Any]] = {
            "copies": lambda site: None,
            "nccl+norm": lambda site: after(site, all_reduced(site)),
            "oneshot+norm": lambda site: after(site, one_shot(site)),
        }
        for block in sorted({512, 1024, 2048, power_of_two(hidden)}):
            channel = self.group.channel(tokens, hidden, BF16, block)
            arms[f"ours/{block}"] = partial(ours_norm, channel=channel)
        if self.lib is not None:
            workspace = self.workspace(hidden)
            for pdl in (False, True):
                name = f"flashinfer{'+pdl' if pdl else ''}"
                arms[name] = partial(theirs, lib=self.lib, workspace=workspace, pdl=pdl)
        self.time("ar_norm", tokens, hidden, sites, arms)

    def post(self, tokens: int, hidden: int) -> None:
        sites, one_shot = [Site(tokens, hidden, 4) for _ in range(SITES)], OneShot(tokens, hidden)
        arms: dict[str, Callable[[Site], Any]] = {
            "copies": lambda site: None,
            "nccl+post": lambda site: post_after(site, all_reduced(site)),
            "oneshot+post": lambda site: post_after(site, one_shot(site)),
        }
        for block in (256, 512, 1024):
            channel = self.group.channel(tokens, hidden, BF16, block)
            arms[f"ours/{block}"] = partial(ours_post, channel=channel)
        self.time("mhc_post", tokens, hidden, sites, arms)

    def time(self, what: str, tokens: int, hidden: int, sites: list[Site], arms: dict[str, Any]) -> None:
        chains = {name: in_each(sites, call) for name, call in arms.items()}
        timed(self.report, self.before, what, tokens, hidden, chains)


def in_rank_order(x: Tensor, group: SymmetricGroup) -> Tensor:
    """What the kernels promise: a float32 sum in rank order, rounded once."""
    parts = [torch.empty_like(x) for _ in range(group.size)]
    dist.all_gather(parts, x)
    total = torch.zeros_like(x, dtype=torch.float32)
    for part in parts:
        total += part.float()
    return total.to(x.dtype)


def apart(got: Tensor, want: Tensor) -> Tensor:
    """How many representable numbers lie between, element by element."""
    return (got.view(torch.int16).int() - want.view(torch.int16).int()).abs()


def check_chain(report: Report, group: SymmetricGroup, tokens: int, hidden: int, block: int, post: bool,
                replays: int, fewest: int = 0) -> None:  # fmt: skip
    """A chain of sites, replayed with new inputs while ranks are late; every site is compared.

    With `fewest` sites take from so many tokens to `tokens` in turn, which share their inboxes, and carry nothing on.
    """
    generator = torch.Generator("cuda").manual_seed(0)
    same = partial(torch.randn, generator=generator, device="cuda")
    x = torch.empty(SITES, tokens, hidden, dtype=BF16, device="cuda")
    delays = torch.zeros(SITES, group.size, dtype=torch.int32, device="cuda")
    counts = [tokens - (site % (tokens - fewest + 1) if fewest else 0) for site in range(SITES)]
    channels = [group.channel(count, hidden, BF16, block) for count in counts]
    residual, streams = same(tokens, hidden).to(BF16), same(tokens, 4, hidden).to(BF16)
    norm, mix, comb = Norm(same(hidden).to(BF16), EPS), same(tokens, 4).abs() / 4, same(tokens, 4, 4).softmax(1)

    def chain(fused: bool) -> list[Tensor]:
        kept, carried = [], streams if post else residual
        for site, count in enumerate(counts):
            late, own, beside = delays[site], x[site, :count], carried[:count]
            gains = mix[:count], comb[:count]
            if post:
                made = (
                    launch.ar_hc_post(own, beside, *gains, channels[site], delays=late)
                    if fused
                    else launch_norm.mhc_post(in_rank_order(own, group), beside, *gains)
                )
                kept.append(made)
            else:
                normed, made = (
                    launch.all_reduce_norm(own, beside, norm, channels[site], delays=late)
                    if fused
                    else launch_norm.add_rmsnorm(in_rank_order(own, group), beside, norm)
                )
                kept += [made, normed]
            carried = carried if fewest else made
        return kept

    x.normal_()
    graph = captured(partial(chain, True))
    differing = further = compared = 0
    for _ in range(replays):
        x.normal_()
        delays.random_(0, LATEST)
        for out in graph.kept:
            out.fill_(float("nan"))
        torch.cuda._sleep(int(torch.randint(200_000, (1,))))
        graph.replay()
        for got, want in zip(graph.kept, chain(False), strict=True):
            distance = apart(got, want)
            differing, further = differing + (distance != 0).sum(), further + (distance > 1).sum()
            compared += got.numel()
    torch.cuda.synchronize()
    graph.reset()
    ok = int(further) == 0 and (int(differing) == 0 or not post)
    agreed = group.agree([ok])[0]
    report.add(
        what="correct",
        boundary="mhc_post" if post else "ar_norm",
        tokens=tokens,
        fewest=fewest or tokens,
        hidden=hidden,
        columns=block,
        replays=replays,
        elements=compared,
        differing=int(differing),
        by_more_than_a_bit=int(further),
        ok=agreed,
    )


def correct(report: Report, group: SymmetricGroup, replays: int) -> None:
    """Chains of both boundaries, then values that an empty slot could be mistaken for."""
    for tokens, hidden in ((1, 4096), (16, 7168), (128, 6144)):
        for block in (1024, power_of_two(hidden)):
            check_chain(report, group, tokens, hidden, block, False, replays)
    check_chain(report, group, 16, 4096, 512, True, replays)
    for post, block in ((False, 1024), (False, 4096), (True, 512)):
        check_chain(report, group, 8, 4096, block, post, replays, fewest=5)
    x = torch.randn(4, 4096, device="cuda").to(BF16)
    x[0] = -0.0
    x.view(torch.int16)[1, : 99 + group.rank] = -1
    x[2, group.rank] = float("inf")
    for _ in range(3):
        got, want = launch.all_reduce(x, group.channel(4, 4096, BF16)), in_rank_order(x, group)
        alike = (got == want) | (got.isnan() & want.isnan())
        report.add(what="correct", boundary="odd values", ok=group.agree([bool(alike.all())])[0])


def dry() -> None:
    """Sizes for this many ranks, on CPUs: what fits, and that every rank cuts its buffer alike."""
    dist.init_process_group("gloo")
    group = ProcessGroup()
    used = 0
    for hidden in (4096, 6144, 7168):
        for tokens in (1, 4, 16, 32, 64, MOST_TOKENS):
            block = row_block(hidden)
            wanted = inbox_bytes(group.size, tokens, hidden, BF16)
            programs = tokens * -(-hidden // block)
            epochs, sums = counters(1, tokens, -(-hidden // block), "cpu")
            used += wanted
            lamport = 3 * group.size * MOST_TOKENS * hidden * 2
            row = {
                "hidden": hidden,
                "tokens": tokens,
                "programs": programs,
                "inbox": wanted,
                "counters": (epochs.numel() + sums.numel()) * 4,
                "fits": wanted <= CAPACITY,
                "pushed": (group.size - 1) * tokens * hidden * 2,
                "flashinfer_workspace": group.size * MOST_TOKENS * hidden * 2 + group.size * 1024 + lamport,
            }
            if not group.same(wanted ^ used & 0x7FFFFFFF):
                raise SystemExit(f"rank {group.rank} would cut its buffer at another place")
            if group.rank == 0:
                print(row, flush=True)
            if not row["fits"]:
                raise SystemExit(f"{wanted} bytes of [{tokens}, {hidden}] at {group.size} ranks do not fit {CAPACITY}")
    if group.rank == 0:
        print(f"{group.size} ranks agree; all channels together take {used / 2**20:.1f} MiB a rank")
    dist.destroy_process_group()


def main() -> None:
    """Everything that --only names, until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="correct,norm,post")
    parser.add_argument("--tokens", default="1,4,16,32,64,128")
    parser.add_argument("--hidden", default="4096,6144,7168")
    parser.add_argument("--post-hidden", default="4096")
    parser.add_argument("--replays", type=int, default=30, help="of the checks")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    if options.dry:
        dry()
        return
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local), timeout=timedelta(seconds=90))
    torch.manual_seed(dist.get_rank())
    group = SymmetricGroup(capacity=1 << 30)
    report = Report(group, options.out, options.seconds)
    parts = options.only.split(",")
    if "correct" in parts:
        correct(report, group, options.replays)
    bench = Bench(group, report)
    hiddens = {"norm": options.hidden, "post": options.post_hidden}
    for tokens in (int(t) for t in options.tokens.split(",")):
        for part in (part for part in parts if part in hiddens):
            for hidden in (int(h) for h in hiddens[part].split(",")):
                if report.late():
                    continue
                try:
                    getattr(bench, part)(tokens, hidden)
                except Exception:
                    traceback.print_exc()
                    raise
    torch.cuda.synchronize()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
