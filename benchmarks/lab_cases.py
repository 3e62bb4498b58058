"""The cases of the lab set, and how each is built as a CUDA graph: split, and with its boundary fused.

A chain repeats producer (a GEMM with weights of its own, larger than the L2 cache in all), boundary, consumer. With two
streams a further GEMM starts behind the producer on a second stream and is waited for before the consumer, so that
the boundary lies off the critical path as far as that GEMM outlasts it. A model case is the built-in decode forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from lab_kernels import (
    lab_add_kernel,
    lab_add_norm_kernel,
    lab_add_norm_quant_kernel,
    lab_mul_kernel,
    lab_norm_kernel,
    lab_pull_kernel,
    lab_pull_norm_kernel,
    lab_quant_kernel,
    lab_silu_kernel,
    lab_silu_mul_kernel,
    lab_silu_mul_quant_kernel,
    lab_static_quant_kernel,
)

from fusionscope.fusion_runtime.comm.channel import power_of_two
from fusionscope.fusion_runtime.comm.loopback import Loopback
from fusionscope.fusion_runtime.decode import cuda_ops as ops
from fusionscope.fusion_runtime.decode.cuda_products import grouped_linear
from fusionscope.fusion_runtime.decode.recorder import captured_nodes
from fusionscope.fusion_runtime.kernels import launch
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import FinalizeOperands

Tensor = Any
TP, TOP_K, EPS = 4, 8, 1e-6


@dataclass(frozen=True)
class Shape:
    """Widths of a chain: GEMMs of hidden x inner, and how many sites make a step."""

    name: str
    hidden: int
    inner: int
    sites: int
    #: Width of the second stream's GEMM.
    side: int


SHAPES = {
    "glm": Shape("glm", 4096, 12288, 16, 1536),
    "dsv3": Shape("dsv3", 7168, 4608, 20, 1024),
}
#: The in-context bench: the same hidden width, other GEMMs, few sites.
BENCH_SITES = 6


@dataclass(frozen=True)
class Case:
    """One case; `held_out` cases are never used to choose a number."""

    boundary: str
    shape: str
    batch: int
    streams: int = 1
    pdl: bool = False
    held_out: bool = True

    @property
    def id(self) -> str:
        variant = "".join((".2streams" if self.streams == 2 else "", ".pdl" if self.pdl else ""))
        return f"{self.shape}.{self.boundary}.b{self.batch}{variant}"


CHAINED = ("add_norm", "norm_fp8", "ar_norm", "finalize_add", "moe_finalize", "mhc_post", "silu_mul", "silu_fp8")
WITH_PDL = ("add_norm", "norm_fp8", "pull_norm", "silu_fp8")
TWO_STREAMS = (("glm", ("add_norm", "ar_norm", "mhc_post", "moe_finalize")), ("dsv3", ("add_norm", "ar_norm")))
#: FlashInfer's kernels: add + RMSNorm, and the same ending in FP8, against its norm behind an add or before a cast.
FLASHINFER = ("fi_add_norm", "fi_norm_fp8")


def chains() -> list[Case]:
    """Every chain, the held-out ones in an order that any early end leaves mixed."""
    tuning = [Case(b, "glm", n, held_out=False) for b in CHAINED for n in (2, 32)]
    tuning += [Case(b, "glm", 8, streams=2, held_out=False) for b in ("add_norm", "ar_norm", "mhc_post")]
    tuning += [Case(b, "glm", 8, pdl=True, held_out=False) for b in WITH_PDL]
    held = []
    for batch in (4, 64, 1, 16):
        held += [Case(b, "glm", batch) for b in CHAINED]
        held += [Case(b, "dsv3", batch) for b in CHAINED]
        if batch in (4, 64):
            held += [Case(b, shape, batch, streams=2) for shape, boundaries in TWO_STREAMS for b in boundaries]
            held += [Case(b, "dsv3", batch, pdl=True) for b in WITH_PDL]
    return tuning + held


def second_chains() -> list[Case]:
    """Chains that the first set did not hold: batch 16, the rest of DeepSeek's batch 1, FlashInfer's kernels."""
    both = ("dsv3", "glm")
    found = [Case(b, shape, 16) for b in CHAINED for shape in both]
    found += [Case(b, shape, 16, streams=2) for shape, boundaries in TWO_STREAMS for b in boundaries]
    found += [Case(b, shape, 16, pdl=True) for b in WITH_PDL for shape in both]
    found += [Case(b, "dsv3", 1) for b in ("mhc_post", "moe_finalize", "silu_mul", "silu_fp8")]
    found += [Case(b, shape, batch) for batch in (16, 4, 64, 1) for b in FLASHINFER for shape in both]
    found += [Case(b, shape, batch, pdl=True) for batch in (4, 64) for b in FLASHINFER for shape in both]
    return found


def third_chains() -> list[Case]:
    """Chains at batches 2, 8 and 32 that neither set before held; of GLM's widths the first had 2 and 32 to tune on."""
    both = ("dsv3", "glm")
    found = [Case(b, "dsv3", batch) for batch in (8, 32, 2) for b in CHAINED]
    found += [Case(b, "glm", 8) for b in CHAINED]
    found += [Case(b, "dsv3", batch, streams=2) for batch in (8, 32) for b in ("add_norm", "ar_norm", "mhc_post")]
    found += [Case(b, "glm", 32, streams=2) for b in ("add_norm", "ar_norm", "mhc_post", "moe_finalize")]
    found += [Case(b, "dsv3", 8, pdl=True) for b in WITH_PDL]
    found += [Case(b, shape, 32, pdl=True) for b in WITH_PDL for shape in both]
    found += [Case(b, shape, batch) for batch in (8, 32, 2) for b in FLASHINFER for shape in both]
    found += [Case(b, shape, batch, pdl=True) for batch in (8, 32) for b in FLASHINFER for shape in both]
    return found


def fourth_chains() -> list[Case]:
    """Chains at batches 3 to 48 that no set held, and last of each kind those of the third that time cut off."""
    both = ("dsv3", "glm")
    batches = {"dsv3": (12, 48), "glm": (24, 6)}
    found = [Case(b, shape, batches[shape][k]) for k in (0, 1) for b in CHAINED for shape in both]
    found += [Case(b, "dsv3", 24, streams=2) for b in ("add_norm", "ar_norm", "mhc_post")]
    found += [Case(b, "glm", 12, streams=2) for b in ("ar_norm", "moe_finalize", "add_norm", "mhc_post")]
    found += [Case(b, shape, batch, pdl=True) for shape, batch in (("glm", 12), ("dsv3", 24)) for b in WITH_PDL]
    found += [Case(b, shape, batch) for batch in (12, 48, 3) for b in FLASHINFER for shape in both]
    found += [Case(b, shape, batch, pdl=True) for batch in (24, 6) for b in FLASHINFER for shape in both]
    return [
        *found,
        *(Case(b, "glm", 8) for b in CHAINED),
        *(Case(b, "glm", 32, streams=2) for b in ("ar_norm", "mhc_post")),
        *(Case("silu_fp8", shape, 32, pdl=True) for shape in both),
        *(Case(b, "glm", 2) for b in FLASHINFER),
    ]


@dataclass
class Built:
    """A captured graph, the half-open node range of each site, and what must stay alive."""

    graph: Any
    sites: list[tuple[int, int]]
    kept: list[Any] = field(default_factory=list)


class Weights:
    """GEMM weights of the longest chain of each width, made once: chains of one width share them."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, int, int, bool], list[Tensor]] = {}

    def get(self, count: int, rows: int, columns: int, fp8: bool = False) -> list[Tensor]:
        key = (count, rows, columns, fp8)
        if key not in self._made:
            made = []
            for _ in range(count):
                drawn = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * columns**-0.5
                made.append(drawn.to(torch.float8_e4m3fn) if fp8 else drawn)
            self._made[key] = made
        return self._made[key]

    def clear(self) -> None:
        self._made.clear()


def rand(*shape: int, dtype: Any = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


class Boundary:
    """The operands of one case's boundary, and its two ways to run: y [T, ...] -> what the consumer takes."""

    def __init__(self, kind: str, tokens: int, hidden: int, inner: int, pdl: bool) -> None:
        self.kind, self.tokens, self.hidden, self.inner, self.pdl = kind, tokens, hidden, inner, pdl
        self.block = power_of_two(hidden)
        self.residual, self.gain = rand(tokens, hidden), rand(hidden) * 0.1 + 1
        self.group = Loopback(TP, "cuda")
        self.peers = [rand(tokens, hidden) for _ in range(TP - 1)]
        self.streams, self.post = rand(tokens, 4, hidden), torch.rand(tokens, 4, device="cuda")
        self.comb = torch.softmax(rand(tokens, 4, 4, dtype=torch.float32), -1)
        self.idx = torch.arange(tokens * TOP_K, device="cuda", dtype=torch.int32).view(tokens, TOP_K)
        self.weights = torch.full((tokens, TOP_K), 1 / TOP_K, device="cuda")
        self.experts = rand(tokens * TOP_K, hidden)
        self.static_scale = torch.full((1,), 0.02, device="cuda")
        self.static_scales = torch.full((tokens, hidden // 128), 0.02, device="cuda")

    def run(self, y: Tensor, fused: bool) -> Tensor:
        """The boundary on the producer's output: one launch if `fused`, else several."""
        found: Tensor = getattr(self, f"_{self.kind}")(y, fused)
        return found

    def _norm(self, kernel: Any, *operands: Any) -> None:
        kernel[(self.tokens,)](*operands, self.hidden, EPS, block=self.block, pdl=self.pdl, **self._launch())

    def _launch(self) -> dict[str, Any]:
        return {"num_warps": 8, "launch_pdl": True} if self.pdl else {"num_warps": 8}

    def _add_norm(self, y: Tensor, fused: bool) -> Tensor:
        total, out = torch.empty_like(y), torch.empty_like(y)
        if fused:
            self._norm(lab_add_norm_kernel, y, self.residual, self.gain, total, out)
            return out
        grid = (-(-y.numel() // 1024),)
        lab_add_kernel[grid](y, self.residual, total, y.numel(), block=1024, pdl=self.pdl, **self._launch())
        self._norm(lab_norm_kernel, total, self.gain, out)
        return out

    def _norm_fp8(self, y: Tensor, fused: bool) -> Tensor:
        total, q, scale = torch.empty_like(y), *self._fp8(self.hidden)
        if fused:
            self._norm(lab_add_norm_quant_kernel, y, self.residual, self.gain, total, q, scale)
            return q, scale
        out = torch.empty_like(y)
        self._norm(lab_add_norm_kernel, y, self.residual, self.gain, total, out)
        lab_quant_kernel[(self.tokens,)](out, q, scale, self.hidden, block=self.block, pdl=self.pdl, **self._launch())
        return q, scale

    def _fi_add_norm(self, y: Tensor, fused: bool) -> Tensor:
        from flashinfer import norm

        # The residual is written over, as engines do; y is ours to use up.
        if fused:
            norm.fused_add_rmsnorm(y, self.residual, self.gain, EPS, enable_pdl=self.pdl)
            return y
        torch.add(y, self.residual, out=self.residual)
        return norm.rmsnorm(self.residual, self.gain, EPS, enable_pdl=self.pdl)

    def _fi_norm_fp8(self, y: Tensor, fused: bool) -> Tensor:
        from flashinfer import norm

        q = torch.empty_like(y, dtype=torch.float8_e4m3fn)
        if fused:
            norm.fused_add_rmsnorm_quant(
                q, y, self.residual, self.gain, self.static_scale, EPS, enable_pdl=self.pdl
            )  # fmt: skip
            return q, self.static_scales
        norm.fused_add_rmsnorm(y, self.residual, self.gain, EPS, enable_pdl=self.pdl)
        lab_static_quant_kernel[(-(-y.numel() // 1024),)](y, self.static_scale, q, y.numel(), block=1024)
        return q, self.static_scales

    def _fp8(self, width: int) -> tuple[Tensor, Tensor]:
        q = torch.empty((self.tokens, width), device="cuda", dtype=torch.float8_e4m3fn)
        return q, torch.empty((self.tokens, width // 128), device="cuda", dtype=torch.float32)

    def _pull_norm(self, y: Tensor, fused: bool) -> Tensor:
        total, out = torch.empty_like(y), torch.empty_like(y)
        if fused:
            self._norm(lab_pull_norm_kernel, y, *self.peers, self.residual, self.gain, total, out)
            return out
        summed = torch.empty_like(y)
        lab_pull_kernel[(self.tokens,)](
            y, *self.peers, summed, self.hidden, block=self.block, pdl=self.pdl, **self._launch()
        )
        self._norm(lab_add_norm_kernel, summed, self.residual, self.gain, total, out)
        return out

    def _ar_norm(self, y: Tensor, fused: bool) -> Tensor:
        if fused:
            channel = self.group.channel(self.tokens, self.hidden, y.dtype, self.block)
            return launch.all_reduce_norm(y, self.residual, Norm(self.gain, EPS), channel)[0]
        return ops.add_rmsnorm(self.group.all_reduce(y), self.residual, self.gain, EPS, 0.0)[0]

    def _finalize_add(self, y: Tensor, fused: bool) -> Tensor:
        if fused:
            from fusionscope.fusion_runtime.decode.cuda_grid import COLUMNS, cover
            from fusionscope.fusion_runtime.kernels import moe

            out = torch.empty_like(y)
            moe._moe_sum_reduce_kernel[(self.tokens, cover(self.hidden, COLUMNS))](
                self.experts, self.idx, self.weights, y, out, self.hidden, 2.5, k=TOP_K, has_shared=True, block=COLUMNS
            )
            return out
        return ops.add(ops.moe_sum_reduce(self.experts, self.idx, self.weights, 2.5), y)

    def _moe_finalize(self, y: Tensor, fused: bool) -> Tensor:
        parts = FinalizeOperands(self.experts, self.idx, self.weights, 2.5, y)
        if fused:
            channel = self.group.channel(self.tokens, self.hidden, y.dtype)
            return launch.moe_finalize_ar_hc_post(parts, self.streams, self.post, self.comb, channel)[:, 0]
        summed = ops.add(ops.moe_sum_reduce(self.experts, self.idx, self.weights, 2.5), y)
        return ops.mhc_post(self.group.all_reduce(summed), self.streams, self.post, self.comb)[:, 0]

    def _mhc_post(self, y: Tensor, fused: bool) -> Tensor:
        if fused:
            channel = self.group.channel(self.tokens, self.hidden, y.dtype)
            return launch.ar_hc_post(y, self.streams, self.post, self.comb, channel)[:, 0]
        return ops.mhc_post(self.group.all_reduce(y), self.streams, self.post, self.comb)[:, 0]

    def _silu_mul(self, y: Tensor, fused: bool) -> Tensor:
        out = torch.empty((self.tokens, self.inner), device="cuda", dtype=y.dtype)
        grid, last = (self.tokens, -(-self.inner // 1024)), {"block": 1024, "pdl": self.pdl, **self._launch()}
        if fused:
            lab_silu_mul_kernel[grid](y, out, self.inner, **last)
            return out
        activated = torch.empty_like(out)
        lab_silu_kernel[grid](y, activated, self.inner, **last)
        lab_mul_kernel[grid](activated, y, out, self.inner, **last)
        return out

    def _silu_fp8(self, y: Tensor, fused: bool) -> Tensor:
        grid, last = (self.tokens, -(-self.inner // 1024)), {"block": 1024, "pdl": self.pdl, **self._launch()}
        q, scale = self._fp8(self.inner)
        if fused:
            lab_silu_mul_quant_kernel[grid](y, q, scale, self.inner, **last)
            return q, scale
        out = torch.empty((self.tokens, self.inner), device="cuda", dtype=y.dtype)
        lab_silu_mul_kernel[grid](y, out, self.inner, **last)
        lab_quant_kernel[(self.tokens,)](
            out, q, scale, self.inner, block=power_of_two(self.inner), pdl=self.pdl, **self._launch()
        )
        return q, scale


class Chain:
    """A case's chain: the same buffers and weights whichever way its boundary runs."""

    def __init__(self, case: Case, pool: Weights, bench: bool = False) -> None:
        shape = SHAPES[case.shape]
        hidden, inner = shape.hidden, shape.inner
        self.sites = BENCH_SITES if bench else shape.sites
        silu, self.fp8 = case.boundary.startswith("silu"), case.boundary.endswith("fp8")
        self.boundary = Boundary(case.boundary, case.batch, hidden, inner, case.pdl)
        wide, narrow = (2 * inner, hidden) if silu else (hidden, inner)
        if bench:  # other GEMMs than those of the step, on the same boundary
            narrow = narrow // 2
        self.x = rand(case.batch, narrow)
        self.producers = pool.get(self.sites, wide, narrow)
        back = (narrow, inner) if silu else (narrow, hidden)
        self.consumers = pool.get(self.sites, *back, fp8=self.fp8)
        self.scale = torch.full(tuple(-(-n // 128) for n in back), 0.01, device="cuda") if self.fp8 else None
        self.two = case.streams == 2
        self.sides = pool.get(self.sites, shape.side, wide) if self.two else []
        # Streams come from a pool in turn, so that one of them may be the stream that is captured on.
        self.side_streams = [torch.cuda.Stream() for _ in range(2)] if self.two else []

    def forward(self, fused: bool, marks: list[tuple[int, int]]) -> Tensor:
        """One step; appends each site's range of graph nodes to `marks` while a graph is captured."""
        h = self.x
        main = torch.cuda.current_stream()
        aside = next((s for s in self.side_streams if s.cuda_stream != main.cuda_stream), None)
        for site in range(self.sites):
            y = torch.nn.functional.linear(h, self.producers[site])
            if self.two:
                aside.wait_stream(main)
                with torch.cuda.stream(aside):
                    torch.nn.functional.linear(y, self.sides[site])
            first = captured_nodes()
            out = self.boundary.run(y, fused)
            if first is not None:
                marks.append((first, captured_nodes()))
            if self.two:
                main.wait_stream(aside)
            if self.fp8:
                h = grouped_linear(*out, self.consumers[site], self.scale, torch.bfloat16)
            else:
                h = torch.nn.functional.linear(out, self.consumers[site])
        return h

    def build(self, fused: bool, padding: Sequence[int] = ()) -> Built:
        """Capture the chain."""
        return capture(lambda marks: self.forward(fused, marks), [self], padding)

    def alone(self, fused: bool, count: int = 48) -> Built:
        """The boundary alone, so many times in a row on the same operands: what a micro-benchmark times."""
        width = 2 * self.boundary.inner if self.boundary.kind.startswith("silu") else self.boundary.hidden
        y = rand(self.boundary.tokens, width)

        def run(marks: list[tuple[int, int]]) -> None:
            for _ in range(count):
                self.boundary.run(y, fused)

        return capture(run, [self, y])


def capture(run: Callable[[list[tuple[int, int]]], Any], kept: list[Any], padding: Sequence[int] = ()) -> Built:
    """Run until nothing is compiled any more, then capture; the site ranges are those of the capture.

    `padding`: bytes of buffers that are made before the capture's own and held, which moves those.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run([])
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    marks: list[tuple[int, int]] = []
    with torch.cuda.graph(graph):
        held = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in padding]
        result = run(marks)
    graph.instantiate()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    return Built(graph, marks, [*kept, result, held])
