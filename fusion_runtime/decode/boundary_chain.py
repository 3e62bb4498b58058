"""A boundary between its producer and its consumer, again and again: what a bench runs in one graph.

Producer and consumer are matrix products with weights of their own at every site, more than a cache holds, so that the
boundary finds its data as it does in a forward: its input just written, its other operands cold or shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fusionscope.fusion_runtime.boundaries import ar_norm, mhc_post, mhc_post_pre, moe_finalize
from fusionscope.fusion_runtime.comm.base import Group
from fusionscope.fusion_runtime.context import PathChoice
from fusionscope.fusion_runtime.decode.model import make_context, ops_for
from fusionscope.fusion_runtime.decode.recorder import captured_nodes
from fusionscope.fusion_runtime.decode.spec import STREAMS, ModelSpec
from fusionscope.fusion_runtime.errors import BadSpec
from fusionscope.fusion_runtime.hyper import COEFFICIENTS, HyperWeights
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import DeferredFinalize, FinalizeOperands, PartialSum

Tensor = Any

#: y [T, H] of the producer and the number of the site -> the outputs of the boundary, the consumer's input first.
Step = Callable[[Tensor, int], tuple[Tensor, ...]]

KINDS = (mhc_post.NAME, mhc_post_pre.NAME, moe_finalize.NAME, ar_norm.NAME)
WEIGHT_BYTES = 512 * 2**20
"""Weights of all sites together, several times the largest cache of a GPU."""


class BoundaryChain:
    """One boundary of a model at one number of tokens, over a group that runs in this process alone.

    Raises BadSpec where the model has no such boundary.
    """

    def __init__(
        self, boundary: str, spec: ModelSpec, group: Any, tokens: int, device: Any, sites: int = 8, seed: int = 0
    ) -> None:
        there = {site[0] for site in spec.boundary_map()} & set(KINDS)
        if boundary not in there:
            raise BadSpec(f"{spec.name} has 0 sites of {boundary}: choose from {', '.join(sorted(there)) or 'none'}.")
        self.boundary, self.spec, self.group, self.tokens, self.sites = boundary, spec, group, tokens, sites
        self.device, self.ops = torch.device(device), ops_for(device)
        self.dtype = torch.float32 if self.device.type == "cpu" else torch.bfloat16
        self._draw = torch.Generator(self.device).manual_seed(seed)
        self.joined = boundary == mhc_post_pre.NAME
        self.mhc = (
            self.joined or boundary == mhc_post.NAME or (boundary == moe_finalize.NAME and spec.residual == "mhc")
        )
        hidden = spec.hidden
        inner = WEIGHT_BYTES // (2 * sites * hidden * 2) if self.device.type == "cuda" else hidden
        self.x, self.y = self._normal(tokens, inner), self._normal(tokens, hidden)
        self.producers = [self._normal(hidden, inner, std=inner**-0.5) for _ in range(sites)]
        self.consumers = [self._normal(inner, hidden, std=hidden**-0.5) for _ in range(sites)]
        self.rest = self._rest()
        self.experts = self._normal(tokens * max(spec.top_k, 1), hidden)
        rows = torch.arange(len(self.experts), dtype=torch.int32, device=self.device)
        self.idx = rows.view(tokens, max(spec.top_k, 1))
        self.weights = torch.full(self.idx.shape, 1 / self.idx.shape[1], device=self.device)

    def _normal(self, *shape: int, std: float = 1.0, dtype: Any = None) -> Tensor:
        drawn = torch.randn(shape, generator=self._draw, device=self.device, dtype=torch.float32)
        return drawn.mul_(std).to(dtype or self.dtype)

    def _rest(self) -> tuple[Any, ...]:
        """What the boundary reads beside the sum: (streams, post, comb[, the next read]), or (residual, norm)."""
        tokens, hidden, f32 = self.tokens, self.spec.hidden, torch.float32
        if self.mhc:
            post = self._normal(tokens, STREAMS, dtype=f32).sigmoid_()
            comb = torch.softmax(self._normal(tokens, STREAMS, STREAMS, dtype=f32), -1)
            beside = self._normal(tokens, STREAMS, hidden), post, comb
            return (*beside, self._read()) if self.joined else beside
        weight = self._normal(hidden, std=0.1).add_(1)
        return self._normal(tokens, hidden), Norm(weight, self.spec.rms_eps)

    def _read(self) -> HyperWeights:
        spec, f32 = self.spec, torch.float32
        fn = self._normal(COEFFICIENTS, STREAMS * spec.hidden, std=(STREAMS * spec.hidden) ** -0.5, dtype=f32)
        scale, base = self._normal(3, std=0.1, dtype=f32).add_(0.5), self._normal(COEFFICIENTS, std=0.5, dtype=f32)
        norm = self._normal(spec.hidden, std=0.1).add_(1)
        return HyperWeights(fn, scale, base, norm, spec.rms_eps, spec.hc_eps, spec.hc_iters, spec.hc_post_mult)

    def own(self, y: Tensor) -> Any:
        """What this rank brings to the boundary: y, or the operands of a finalize with y as the shared expert."""
        if self.boundary != moe_finalize.NAME:
            return y
        return FinalizeOperands(self.experts, self.idx, self.weights, self.spec.routed_scaling, y)

    def peers(self, y: Tensor) -> list[Tensor]:
        """The other ranks' partial sums [T, H]."""
        return list(self.group.partials(y)[1:]) if self.group.size > 1 else []

    def reference(self, y: Tensor) -> tuple[Tensor, ...]:
        """Plain torch."""
        own = self.own(y)
        mine = moe_finalize.partial(own) if isinstance(own, FinalizeOperands) else own
        parts = [mine, *self.peers(y)]
        if self.joined:
            return _consumed_first(mhc_post_pre.reference(parts, *self.rest))
        if self.mhc:
            return (mhc_post.reference(parts, *self.rest),)
        return tuple(ar_norm.reference(parts, *self.rest))

    def by_path(self, path: str) -> tuple[Step, list[str]]:
        """The boundary as a path runs it, and a list that fills with the reasons for which the path stepped back."""
        ctx = make_context(self.group, self.device, PathChoice({self.boundary: path}))
        declined: list[str] = []

        def step(y: Tensor, site: int) -> tuple[Tensor, ...]:
            ctx.recorder.start()
            out = self._run(y, site, ctx)
            declined.extend(row.declined for row in ctx.recorder.rows if row.declined)
            return out

        return step, declined

    def _run(self, y: Tensor, site: int, ctx: Any) -> tuple[Tensor, ...]:
        own, group = self.own(y), self.group
        if isinstance(own, FinalizeOperands):
            owed = DeferredFinalize(own, group, "the experts")
            if self.mhc:
                return (moe_finalize.run_mhc(owed, *self.rest, layer=site, ctx=ctx),)
            return tuple(moe_finalize.run_norm(owed, *self.rest, subtype="residual", layer=site, ctx=ctx))
        summed = PartialSum(own, group, "the producer's output")
        if self.joined:
            return _consumed_first(mhc_post_pre.run(summed, *self.rest, layer=site, ctx=ctx))
        if self.mhc:
            return (mhc_post.run(summed, *self.rest, subtype="attn_exit", layer=site, ctx=ctx),)
        return tuple(ar_norm.run(summed, *self.rest, subtype="residual", layer=site, ctx=ctx))

    def by_function(self, function: Callable[..., Any]) -> Step:
        """The boundary as somebody's function runs it: function(own, peers, *rest) -> the boundary's outputs."""

        def step(y: Tensor, site: int) -> tuple[Tensor, ...]:
            out = function(self.own(y), self.peers(y), *self.rest)
            return tuple(out) if isinstance(out, tuple | list) else (out,)

        return step

    def error(self, step: Step) -> float:
        """Largest relative error (Frobenius) of the outputs against the reference on fresh data; inf where one is off.

        Off: a missing output, another shape, a value that is no finite number.
        """
        y = self._normal(self.tokens, self.spec.hidden)
        want = self.reference(y)
        got = step(y, 0)
        if len(got) != len(want) or any(g.shape != w.shape for g, w in zip(got, want, strict=False)):
            return float("inf")
        if not all(bool(g.float().isfinite().all()) for g in got):
            return float("inf")
        return max(
            float((g.float() - w.float()).norm() / w.float().norm().clamp(min=1e-20))
            for g, w in zip(got, want, strict=True)
        )

    def forward(self, step: Step, marks: list[tuple[int, int]]) -> Tensor:
        """Producer, boundary and consumer at every site; `marks` gets each site's graph nodes under capture."""
        h = self.x
        for site in range(self.sites):
            y = self.ops.linear(h, self.producers[site])
            out = marked(step, y, site, marks)[0]
            streams = self.mhc and not self.joined
            h = self.ops.linear(out[:, 0] if streams else out, self.consumers[site])
        return h

    def alone(self, step: Step, count: int, between: Callable[[], object], marks: list[tuple[int, int]]) -> None:
        """The boundary so many times on the same input, with `between` before each."""
        for site in range(count):
            between()
            marked(step, self.y, site, marks)


def _consumed_first(joined: mhc_post_pre.Joined) -> tuple[Tensor, ...]:
    return joined.x, joined.streams, joined.post, joined.comb


def marked(step: Step, y: Tensor, site: int, marks: list[tuple[int, int]]) -> Sequence[Tensor]:
    """Run a site and note its graph nodes where a graph is being captured."""
    first = captured_nodes()
    out = step(y, site)
    if first is not None:
        marks.append((first, captured_nodes() or first))
    return out


def local_group(size: int, device: Any, seed: int = 0) -> Group:
    """A group whose ranks all lie in this process."""
    from fusionscope.fusion_runtime.comm.loopback import Loopback
    from fusionscope.fusion_runtime.comm.single import SingleGroup

    return SingleGroup() if size == 1 else Loopback(size, device, seed=seed)
