"""Two and four real gloo ranks: every boundary against its reference, and declines that all ranks share."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from ranks import run_ranks

BOUNDARIES = """
from fusionscope.fusion_runtime.boundaries import ar_norm, mhc_post, moe_finalize
from fusionscope.fusion_runtime.context import DecodeContext, PathChoice
from fusionscope.fusion_runtime.decode import reference_ops
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import Exit, FinalizeOperands, ForwardScope, PartialSum
from fusionscope.fusion_runtime.quant import QUANT_KEYS, InputQuant, dequantise

H, K = 64, 3
ctx = DecodeContext(group, reference_ops, PathChoice())

def draw(seed, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)

def operands(of, T, dtype, replicated):
    generator = torch.Generator().manual_seed(T)
    idx = torch.randint(-1, 8, (T, K), generator=generator, dtype=torch.int32)
    shared = draw(7 if replicated else 300 + of, T, H, dtype=dtype)
    return FinalizeOperands(draw(100 + of, 8, H, dtype=dtype), idx, draw(5, T, K).abs(), 2.5, shared, replicated)

def near(got, want, dtype):
    # Backends add in the storage dtype, in an order of their own: a step of it, of the largest value.
    assert got.shape == want.shape and got.dtype == want.dtype == dtype
    if got.numel():
        error = (got.float() - want.float()).abs().max() / want.float().abs().max()
        assert error <= (2e-2 if dtype == torch.bfloat16 else 3e-3 if dtype == torch.float16 else 1e-5), float(error)

for dtype in (torch.float32, torch.bfloat16, torch.float16):
    norm = Norm(draw(1, H, dtype=dtype), 1e-5, 1.0)
    for T in (0, 1, 2, 4, 15, 16, 17, 64, 129):
        residual, streams = draw(2, T, H, dtype=dtype), draw(3, T, 4, H, dtype=dtype)
        post, comb = draw(4, T, 4).sigmoid(), draw(6, T, 4, 4).softmax(1)
        # Rank r's addend is r + 1 times as large, so that a missing or a second reduction shows.
        parts = [draw(10 + r, T, H, dtype=dtype) * (r + 1) for r in range(size)]
        with ForwardScope():
            mine = Exit(group, "x", tokens=T).hand_on(parts[rank].clone())
            y, r = ar_norm.run(mine, residual, norm, subtype="residual", layer=0, ctx=ctx)
            want = ar_norm.reference(parts, residual, norm)
            near(y, want[0], dtype), near(r, want[1], dtype)
            mine = Exit(group, "x", tokens=T).hand_on(parts[rank].clone())
            y, r = ar_norm.run(mine, None, norm, subtype="no_residual", layer=0, ctx=ctx)
            want = ar_norm.reference(parts, None, norm)
            near(y, want[0], dtype), near(r, want[1], dtype)
            mine = Exit(group, "x", tokens=T).hand_on(parts[rank].clone())
            new = mhc_post.run(mine, streams, post, comb, subtype="attn_exit", layer=0, ctx=ctx)
            near(new, mhc_post.reference(parts, streams, post, comb), dtype)
            if T == 0:
                continue
            for replicated in (False, True):
                everyone = [operands(r, T, dtype, replicated) for r in range(size)]
                owed = Exit(group, "x", tokens=T).hand_on_finalize(everyone[rank])
                y, r = moe_finalize.run_norm(owed, residual, norm, subtype="trailing", layer=0, ctx=ctx)
                want = moe_finalize.reference_norm(everyone, residual, norm)
                near(y, want[0], dtype), near(r, want[1], dtype)
                owed = Exit(group, "x", tokens=T).hand_on_finalize(everyone[rank])
                new = moe_finalize.run_mhc(owed, streams, post, comb, layer=0, ctx=ctx)
                near(new, moe_finalize.reference(everyone, streams, post, comb), dtype)
for key in QUANT_KEYS:
    # Sums of whole numbers are exact in every order, so that every quantised bit must agree.
    parts = [(draw(20 + r, 5, H) * 4).round().bfloat16() for r in range(size)]
    quant = InputQuant(key, torch.tensor([2.0]) if key.needs_scale else None)
    residual, norm = draw(2, 5, H).bfloat16(), Norm(draw(1, H).bfloat16(), 1e-5)
    owed = PartialSum(parts[rank].clone(), group)
    q, _ = ar_norm.run(owed, residual, norm, subtype="residual", layer=0, ctx=ctx, quant=quant)
    want, _ = ar_norm.reference(parts, residual, norm, quant)
    assert q.key == key and torch.equal(dequantise(q), dequantise(want)), key
"""

AGREEMENT = """
from fusionscope.fusion_runtime.boundaries import ar_norm
from fusionscope.fusion_runtime.context import DecodeContext, PathChoice
from fusionscope.fusion_runtime.decode import reference_ops
from fusionscope.fusion_runtime.errors import RanksDisagree
from fusionscope.fusion_runtime.gates import Decline, Gate
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import PartialSum
from fusionscope.fusion_runtime.paths import registry
from fusionscope.fusion_runtime.paths.split import SplitPath

class Exchange(SplitPath):
    '''Takes a collective more than split: alone in it, a rank would wait for ever.'''
    name = "exchange"
    broken_on = size - 1

    def unavailable(self, group, device):
        return Decline(Gate.LIBRARY_MISSING, "no library here") if group.rank == self.broken_on else None

    def ar_norm(self, owed, residual, norm, ctx, quant=None):
        dist.barrier()
        return super().ar_norm(owed, residual, norm, ctx, quant)

registry.register_path("exchange", Exchange)

def one_site():
    ctx = DecodeContext(group, reference_ops, PathChoice.parse("ar_norm=exchange"))
    owed = PartialSum(torch.full((2, 8), rank + 1.0), group)
    _, total = ar_norm.run(owed, torch.zeros(2, 8), Norm(torch.ones(8), 1e-5), subtype="residual", layer=0, ctx=ctx)
    assert total.eq(size * (size + 1) / 2).all()
    return ctx.recorder.rows[0]

row = one_site()
assert row.path == "split", row
assert ("no library here" in row.declined) == (rank == size - 1)
assert ("unavailable_on_a_rank" in row.declined) == (rank != size - 1)
Exchange.broken_on = -1
assert one_site().path == "exchange"
try:
    DecodeContext(group, reference_ops, PathChoice.parse("ar_norm=exchange" if rank else ""))
except RanksDisagree as error:
    print(error)
"""


COMPILED = """
from fusionscope.fusion_runtime.context import DecodeContext, PathChoice
from fusionscope.fusion_runtime.decode import reference_ops
from fusionscope.fusion_runtime.norms import Norm
from fusionscope.fusion_runtime.ownership import Exit, ForwardScope
from fusionscope.fusion_runtime.residual_stream import AddStream

ctx, norm = DecodeContext(group, reference_ops, PathChoice()), Norm(torch.ones(16), 1e-5)

def forward(x):
    with ForwardScope():
        stream = AddStream(ctx, 1)
        y = stream.prepare_attn(Exit(group, "embedding", tokens=x.shape[0]).hand_on(x * 1.0), norm)
        y = stream.prepare_mlp(stream.exit("out").hand_on(y * 0.5), norm)
        return stream.finalize(stream.exit("down").hand_on(y * 0.25), norm)

x = torch.randn(3, 16, generator=torch.Generator().manual_seed(rank))
want = forward(x)
torch.testing.assert_close(torch.compile(forward, fullgraph=True, backend="aot_eager")(x), want)
torch.testing.assert_close(want, forward(x), atol=0, rtol=0)
"""


def test_a_compiled_forward_reduces_over_real_ranks() -> None:
    run_ranks(2, COMPILED)


SUBGROUPS = """
from fusionscope.fusion_runtime.comm.process_group import ProcessGroup
from fusionscope.fusion_runtime.context import PathChoice
from fusionscope.fusion_runtime.decode.model import DecodeModel, make_context
from fusionscope.fusion_runtime.decode.spec import MODELS
from fusionscope.fusion_runtime.paths import aiter

halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
if rank < 2:
    # Two of four ranks (a stage of a pipeline): whatever waited for the world would wait for ever.
    tensor_parallel = ProcessGroup(halves[0])
    ctx = make_context(tensor_parallel, "cpu", PathChoice.parse("ar_norm=triton"))
    spec = MODELS["llama"].scaled().truncated(2)
    print(DecodeModel(spec, tensor_parallel, 2, 256, "cpu", ctx).step().tolist())
    print({row.path for row in ctx.recorder.rows})
    aiter._found = lambda module, name: lambda meeting, device: meeting
    torch.cuda.current_device = lambda: 0
    print(dist.get_process_group_ranks(aiter.AiterPath()._communicator(tensor_parallel)))
"""


def test_nothing_waits_for_ranks_outside_the_group() -> None:
    """Faults of vLLM #43616 and #45917: a rendezvous on the world hangs with pipeline stages."""
    first, second, *others = run_ranks(4, SUBGROUPS)
    assert first == second and "split" in first and "[0, 1]" in first
    assert others == ["", ""]


@pytest.mark.parametrize("size", [2, 4])
def test_every_boundary_equals_its_reference(size: int) -> None:
    run_ranks(size, BOUNDARIES)


@pytest.mark.parametrize("size", [2, 4])
def test_one_rank_declining_alone_takes_the_others_along(size: int) -> None:
    answers = run_ranks(size, AGREEMENT)
    assert all(f"rank {rank} was given the paths" in answer for rank, answer in enumerate(answers))
    assert "'split' and another rank others" in answers[0]
