"""Times one boundary on every path, as a tuning table wants it.

On a GPU a path is a captured graph of SITES sites, each with buffers and weights of its own; the L2 cache is emptied
before each replay, the paths take turns, medians count. A site first copies its inputs into place, as its producer
would leave them; a graph that does that alone is subtracted. On a CPU the sites run one after the other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fusionscope.fusion_runtime.boundaries import ar_norm, mhc_post, mhc_post_pre, moe_finalize
from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.comm.process_group import ProcessGroup
from fusionscope.fusion_runtime.context import DecodeContext, PathChoice
from fusionscope.fusion_runtime.decode.model import make_context
from fusionscope.fusion_runtime.decode.model_spec import STREAMS, ModelSpec
from fusionscope.fusion_runtime.hyper import COEFFICIENTS, HyperWeights
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import DeferredFinalize, FinalizeOperands, PartialSum
from fusionscope.fusion_runtime.paths.registry import path_names
from fusionscope.fusion_runtime.tuning import SPLIT, Row

Tensor = Any
Chain = Callable[[], Any]

SITES = 40
REPLAYS = 25
FLUSHED_BYTES = 256 << 20
"""More than any GPU's L2."""

CANDIDATE_TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def captured(chain: Chain, warm_up: int = 2) -> torch.cuda.CUDAGraph:
    """A graph of what `chain` launches; it runs a few times before, so that kernels compile and buffers are made."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warm_up):
            chain()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # What the chain returns stays alive with the graph.
        graph.kept = chain()
    return graph


class Cold:
    """Empties the L2 cache by writing more than fits."""

    def __init__(self) -> None:
        self.buffer = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device="cuda")

    def __call__(self) -> None:
        self.buffer.zero_()


def replay_times(
    graphs: Mapping[str, torch.cuda.CUDAGraph], replays: int = REPLAYS, before: Callable[[], None] | None = None
) -> dict[str, list[float]]:
    """Microseconds of each replay of each graph, taking turns; `before` runs ahead of each, outside the time."""
    taken: dict[str, list[tuple[Any, Any]]] = {name: [] for name in graphs}
    for _ in range(3):
        for graph in graphs.values():
            graph.replay()
    for _ in range(replays):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if before is not None:
                before()
            begin.record()
            graph.replay()
            end.record()
            taken[name].append((begin, end))
        torch.cuda.synchronize()
    return {name: [begin.elapsed_time(end) * 1e3 for begin, end in pairs] for name, pairs in taken.items()}


def host_times(chains: Mapping[str, Chain], replays: int = 5) -> dict[str, list[float]]:
    """The same without graphs, in wall-clock time."""
    taken: dict[str, list[float]] = {name: [] for name in chains}
    for turn in range(replays + 1):
        for name, chain in chains.items():
            begin = time.perf_counter_ns()
            chain()
            if turn:
                taken[name].append((time.perf_counter_ns() - begin) / 1e3)
    return taken


class Site:
    """One site's inputs, placed by one copy, and its boundary."""

    def __init__(self, rows: int, hidden: int, dtype: Any, device: Any) -> None:
        self.source = torch.randn(rows, hidden, device=device).to(dtype)
        self.placed = torch.empty_like(self.source)

    def place(self) -> None:
        self.placed.copy_(self.source)

    def run(self, ctx: DecodeContext) -> Any:
        raise NotImplementedError


class NormSite(Site):
    """ar_norm of x and the residual."""

    def __init__(self, spec: ModelSpec, tokens: int, dtype: Any, device: Any) -> None:
        super().__init__(2 * tokens, spec.hidden, dtype, device)
        self.x, self.residual = self.placed[:tokens], self.placed[tokens:]
        self.norm = Norm(torch.randn(spec.hidden, device=device).to(dtype), spec.rms_eps)

    def run(self, ctx: DecodeContext) -> Any:
        owed = PartialSum(self.x, ctx.group)
        return ar_norm.run(owed, self.residual, self.norm, subtype="residual", layer=0, ctx=ctx)


class PostSite(Site):
    """mhc_post of x and the streams."""

    def __init__(self, spec: ModelSpec, tokens: int, dtype: Any, device: Any) -> None:
        super().__init__(5 * tokens, spec.hidden, dtype, device)
        self.x, self.streams = self.placed[:tokens], self.placed[tokens:].view(tokens, 4, -1)
        self.post, self.comb = torch.rand(tokens, 4, device=device), torch.rand(tokens, 4, 4, device=device)

    def run(self, ctx: DecodeContext) -> Any:
        owed = PartialSum(self.x, ctx.group)
        return mhc_post.run(owed, self.streams, self.post, self.comb, subtype="ffn_exit", layer=0, ctx=ctx)


class PostPreSite(PostSite):
    """mhc_post and the read behind it, whose weights are its own: they are most of the bytes at few tokens."""

    def __init__(self, spec: ModelSpec, tokens: int, dtype: Any, device: Any) -> None:
        super().__init__(spec, tokens, dtype, device)
        wide = STREAMS * spec.hidden
        fn = torch.randn(COEFFICIENTS, wide, device=device).mul_(wide**-0.5)
        scale, base = torch.full((3,), 0.5, device=device), torch.randn(COEFFICIENTS, device=device)
        norm = torch.randn(spec.hidden, device=device).to(dtype)
        constants = (spec.rms_eps, spec.hc_eps, spec.hc_iters, spec.hc_post_mult)
        self.read = HyperWeights(fn, scale, base, norm, *constants)

    def run(self, ctx: DecodeContext) -> Any:
        owed = PartialSum(self.x, ctx.group)
        return mhc_post_pre.run(owed, self.streams, self.post, self.comb, self.read, layer=0, ctx=ctx)


class FinalizeSite(Site):
    """moe_finalize up to the end that the model's has."""

    def __init__(self, spec: ModelSpec, tokens: int, dtype: Any, device: Any) -> None:
        beside, rows = (4 if spec.residual == "mhc" else 1) * tokens, tokens * spec.top_k
        super().__init__(rows + tokens + beside, spec.hidden, dtype, device)
        idx = torch.randperm(rows, device=device).to(torch.int32).view(tokens, spec.top_k)
        weights = torch.rand(tokens, spec.top_k, device=device)
        routed, shared = self.placed[:rows], self.placed[rows : rows + tokens]
        self.parts = FinalizeOperands(routed, idx, weights, spec.routed_scaling, shared)
        self.beside = self.placed[rows + tokens :]
        self.ends_in_mhc = spec.residual == "mhc"
        self.norm = Norm(torch.randn(spec.hidden, device=device).to(dtype), spec.rms_eps)
        self.post, self.comb = torch.rand(tokens, 4, device=device), torch.rand(tokens, 4, 4, device=device)

    def run(self, ctx: DecodeContext) -> Any:
        owed = DeferredFinalize(self.parts, ctx.group)
        if self.ends_in_mhc:
            streams = self.beside.view(self.post.shape[0], 4, -1)
            return moe_finalize.run_mhc(owed, streams, self.post, self.comb, layer=0, ctx=ctx)
        return moe_finalize.run_norm(owed, self.beside, self.norm, subtype="residual", layer=0, ctx=ctx)


KINDS: dict[str, Callable[[ModelSpec, int, Any, Any], Site]] = {
    "ar_norm": NormSite,
    "mhc_post": PostSite,
    "mhc_post_pre": PostPreSite,
    "moe_finalize": FinalizeSite,
}


@dataclass(frozen=True)
class Measured:
    """A row, and why each path that is not in it stepped back."""

    row: Row
    declined: Mapping[str, str]


def boundaries_of(spec: ModelSpec) -> list[str]:
    """The kinds that the model has, in order of first occurrence."""
    return list(dict.fromkeys(boundary for boundary, _, _, _ in spec.boundary_map()))


def measure(
    spec: ModelSpec, group: Group, device: Any, tokens: Sequence[int] = CANDIDATE_TOKENS, emulated: bool = False
) -> Iterator[Measured]:
    """Every boundary of the model at every number of tokens; collective over the group."""
    for boundary in boundaries_of(spec):
        for count in tokens:
            yield _one(boundary, spec, group, torch.device(device), count, emulated)


def _one(boundary: str, spec: ModelSpec, group: Group, device: Any, tokens: int, emulated: bool) -> Measured:
    on_gpu = device.type == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    sites = [KINDS[boundary](spec, tokens, dtype, device) for _ in range(SITES if on_gpu else 2)]
    chains: dict[str, Chain] = {"copies": lambda: _placed(sites, None)}
    declined: dict[str, str] = {}
    for path in path_names():
        if path == "auto":
            continue
        ctx = make_context(group, device, PathChoice.parse(f"{boundary}={path}"))
        why = _why_not(ctx, sites[0], path)
        if why:
            declined[path] = why
        else:
            chains[path] = _chain(sites, ctx)
    if on_gpu:
        times = replay_times({name: captured(chain) for name, chain in chains.items()}, before=_before(group))
    else:
        times = host_times(chains)
    each = {name: statistics.median(taken) / len(sites) for name, taken in times.items()}
    us = {name: round(max(value - each["copies"], 0.0), 3) for name, value in each.items() if name != "copies"}
    return Measured(Row(boundary, spec.hidden, group.size, tokens, us, emulated), declined)


def _chain(sites: Sequence[Site], ctx: DecodeContext) -> Chain:
    return lambda: _placed(sites, ctx)


def _placed(sites: Sequence[Site], ctx: DecodeContext | None) -> list[Any]:
    kept = []
    for site in sites:
        site.place()
        if ctx is not None:
            ctx.recorder.start()
            kept.append(site.run(ctx))
    return kept


def _why_not(ctx: DecodeContext, site: Site, path: str) -> str:
    """Runs one site and asks what was taken: a time must belong to the path that it is written down for."""
    site.place()
    ctx.recorder.start()
    site.run(ctx)
    first = ctx.recorder.rows[0]
    if first.path == path or path == SPLIT:
        return ""
    return first.declined.removeprefix(f"{path}: ") or f"{first.path} ran"


def _before(group: Group) -> Callable[[], None]:
    cold, token = Cold(), torch.zeros(1, 8, device="cuda")

    def before() -> None:
        cold()
        if isinstance(group, ProcessGroup):
            # Real ranks meet, so that none begins earlier.
            group.all_reduce(token)

    return before
