"""The kernels' own exchange among the counted reductions: whatever makes them step back, every sum is reduced once.

A launch is two here, publish and consume, as the interpreter's programs do not wait for each other. Between them the
peers, which hold the same addend as this rank, send what this rank sent them.
"""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("triton was imported before its interpreter was chosen", allow_module_level=True)

from counting import Counting

from fusionscope.fusion_runtime.comm.channel import SLOTS, Channel, ExchangeGroup, counters
from fusionscope.fusion_runtime.context import DecodeContext, PathChoice
from fusionscope.fusion_runtime.decode import cuda_ops, reference_ops
from fusionscope.fusion_runtime.hyper import HyperWeights
from fusionscope.fusion_runtime.kernels import launch, launch_mhc_pre
from fusionscope.fusion_runtime.norms import GemmaRmsNorm
from fusionscope.fusion_runtime.ownership import Exit, FinalizeOperands, ForwardScope, Full
from fusionscope.fusion_runtime.paths import triton as triton_path
from fusionscope.fusion_runtime.quant import (
    FP8_TOKEN_GROUP_128,
    NVFP4_SWIZZLED,
    InputQuant,
    QuantisedActivation,
    dequantise,
)
from fusionscope.fusion_runtime.residual_stream import AddStream, HyperStream

SIZE, K, CAP = 3, 2, 4


class Exchanging(Counting, ExchangeGroup):
    """Rank 0 of `SIZE`; `exchanges` counts what the kernels reduced, `reductions` the separate all-reduces."""

    device = torch.device("cpu")

    def __init__(self, room=True, everywhere=True):
        Counting.__init__(self, SIZE)
        ExchangeGroup.__init__(self)
        self.exchanges, self._room, self._everywhere = 0, room, everywhere

    def agree(self, able):
        return [one and self._everywhere for one in able]

    def _lacks(self, wanted):
        return None if self._room else "it is full"

    def _make(self, tokens, width, dtype, block):
        memory = torch.full((SIZE, SLOTS, SIZE, tokens * width), -1, dtype=torch.int32)
        inboxes = torch.tensor([memory[owner].data_ptr() for owner in range(SIZE)])
        epochs, sums = counters(1, tokens, -(-width // block), "cpu")
        return Channel(SIZE, tokens, width, block, dtype, 0, False, inboxes, epochs, sums, memory, tokens)


def answered(channel, push, consume):
    """Two launches; between them the peers send what they were sent."""
    memory, slot = channel.memory, int(channel.epochs[0, 0]) % SLOTS
    assert (memory == -1).all()
    push()
    for peer in range(1, SIZE):
        sent = memory[peer, slot, 0]
        assert not (sent == -1).any()
        memory[0, slot, peer] = sent
        memory[peer, slot, 0] = -1
    made = consume()
    assert (memory == -1).all()
    GROUPS[-1].exchanges += 1
    return made


@pytest.fixture(autouse=True)
def two_launches(monkeypatch):
    run, join = launch._run, launch_mhc_pre.post_and_project

    def staged(kernel, channel, operands, scalars, stages, delays, **constants):
        assert stages == launch.ONE_LAUNCH and channel.blocks == 1
        one = (kernel, channel, operands, scalars)
        answered(channel, lambda: run(*one, (1,), delays, **constants), lambda: run(*one, (14,), delays, **constants))

    def joined(*operands):
        return answered(operands[5], lambda: join(*operands, (1,)), lambda: join(*operands, (10,)))

    monkeypatch.setattr(launch, "_run", staged)
    monkeypatch.setattr(launch_mhc_pre, "post_and_project", joined)
    monkeypatch.setattr(triton_path, "MAX_TOKENS", CAP)
    monkeypatch.setattr(triton_path, "MAX_JOINED_TOKENS", CAP)


GROUPS: list[Exchanging] = []

#: What is changed -> whose sites run on triton, the gate that the others name.
CASES = {
    "nothing": ({}, True, ""),
    "one token": ({"tokens": 1}, True, ""),
    "no rows": ({"tokens": 0}, False, None),
    "rows over the cap": ({"tokens": CAP + 1}, False, "tokens_over_cap"),
    "a full buffer": ({"room": False}, False, "workspace_too_small"),
    "a width no vector takes": ({"hidden": 36}, False, "alignment"),
    "an end of its own": ({"own": True}, False, "own_completion"),
    "another rank that cannot": ({"everywhere": False}, False, "unavailable_on_a_rank"),
    "views": ({"views": True}, True, ""),
    "nobody downstream": ({"final": False}, True, ""),
    "a norm no kernel knows": ({"norm": lambda w, eps: torch.nn.LayerNorm(len(w))}, False, "norm_unsupported"),
    "a format the kernels write": ({"key": FP8_TOKEN_GROUP_128}, True, ""),
    "a format they do not write": ({"key": NVFP4_SWIZZLED}, True, "quant_unsupported"),
}


def laid_out(x, views):
    """x, or a view with the same values whose rows or columns do not follow each other."""
    return x.transpose(0, -1).contiguous().transpose(0, -1) if views else x


def drawn(seed, *shape, views=False):
    return laid_out(torch.randn(shape, generator=torch.Generator().manual_seed(seed)), views)


class Read:
    """Coefficients that are views, of a read that no kernel knows."""

    def read(self, streams, ctx):
        tokens = streams.shape[0]
        post, comb = drawn(7, tokens, 4, views=True), drawn(8, tokens, 4, 4, views=True)
        return streams.mean(1), post.sigmoid(), comb.softmax(1)


def read_of(hidden):
    """The weights of a read, whose coefficients keep the streams apart."""
    fn = drawn(7, 24, 4 * hidden) / hidden
    return HyperWeights(fn, torch.ones(3), drawn(8, 24), 1 + drawn(9, hidden) / 9, 1e-5)


class Consumer:
    def __init__(self, key):
        self.input_quant = key and InputQuant(key, torch.tensor([8.0]) if key.needs_scale else None)


def forward(group, ctx, hyper, moe, *, tokens=3, hidden=32, own=False, views=False, final=True, norm=GemmaRmsNorm,
            key=None, **ignored):  # fmt: skip
    """One layer and the final norm -> what the stream gave out, and the residual or the streams at the end."""
    completion = group.all_reduce if own else None
    consumer, given = Consumer(key), []
    stream = HyperStream(ctx, 1, final=final) if hyper else AddStream(ctx, 1, final=final)
    known = read_of(hidden) if key is None and not views else Read()
    read = known if hyper else norm(drawn(1, hidden), 1e-5)
    with ForwardScope():
        update = Exit(group, "embedding", tokens=tokens, completion=completion).hand_on(drawn(2, tokens, hidden))
        given.append(stream.prepare_attn(update, read, consumer))
        if views and hyper:
            stream.streams = laid_out(stream.streams, True)
        elif views:
            stream.residual = laid_out(stream.residual, True)
        exit = stream.exit("out", completion=completion)
        given.append(stream.prepare_mlp(exit.hand_on(drawn(3, tokens, hidden, views=views)), read, consumer))
        exit = stream.exit("down", completion=completion)
        if moe and exit.deferred:
            idx = torch.arange(tokens * K, dtype=torch.int32).view(tokens, K) % 6 - 1
            parts = FinalizeOperands(
                drawn(4, 6, hidden, views=views), laid_out(idx, views), drawn(5, tokens, K, views=views).abs(), 2.5,
                drawn(6, tokens, hidden, views=views),
            )  # fmt: skip
            update = exit.hand_on_finalize(parts)
        else:
            update = exit.hand_on(drawn(3, tokens, hidden, views=views))
        if final:
            given.append(stream.finalize(update, norm(drawn(1, hidden), 1e-5)))
        else:
            assert isinstance(update, Full)
            given.append(update.tensor)
    given = [dequantise(x) if isinstance(x, QuantisedActivation) else x for x in given]
    return given, stream.streams if hyper else stream.residual


#: The boundaries of hyper-connections end in no norm.
ADD_ONLY = ("a norm no kernel knows", "a format the kernels write", "a format they do not write")


@pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])
@pytest.mark.parametrize(
    ("case", "hyper"), [(case, hyper) for case in CASES for hyper in (False, True) if not (hyper and case in ADD_ONLY)]
)
def test_every_sum_is_reduced_once_by_a_kernel_or_by_the_group(case, hyper, moe):
    changes, fused, gate = CASES[case]
    group = Exchanging(changes.get("room", True), changes.get("everywhere", True))
    GROUPS.append(group)
    ctx = DecodeContext(
        group, reference_ops, PathChoice.parse("ar_norm=triton,mhc_post=triton,mhc_post_pre=triton,moe_finalize=triton")
    )
    given, state = forward(group, ctx, hyper, moe, **changes)
    plain = Counting(SIZE)
    want, want_state = forward(plain, DecodeContext(plain, reference_ops), hyper, moe, **changes)

    sums = 0 if changes.get("tokens") == 0 else 3
    assert group.exchanges + group.reductions == plain.reductions == sums
    # Hyper-connections complete the embedding's sum apart; the last exit reduces where nobody takes its sum.
    assert group.exchanges == (sums - hyper - (not changes.get("final", True)) if fused else 0)
    torch.testing.assert_close(state, want_state, rtol=1e-5, atol=1e-5)
    for mine, other in zip(given, want, strict=True):
        close = {"rtol": 0.13, "atol": 0.3} if "key" in changes else {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(mine, other, **close)
    rows = ctx.recorder.rows
    assert bool(rows) == bool(sums)
    if hyper and changes.get("views"):
        # The read there is no plain set of weights, and nothing else is wrong.
        (joined,) = (row for row in rows if row.boundary == "mhc_post_pre")
        assert joined.path == "split" and joined.declined.endswith("[read_unsupported]")
        rows = [row for row in rows if row is not joined]
    for row in rows:
        # A finalize before a norm that no kernel knows stays a finalize of triton's.
        assert row.path == ("triton" if fused or (gate == "norm_unsupported" and row.boundary == "moe_finalize") else
                            "split")  # fmt: skip
    said = [row for row in rows if row.boundary != "moe_finalize" or gate != "norm_unsupported"]
    if gate and gate != "quant_unsupported":
        assert all(f"[{gate}]" in row.declined for row in said)
    elif gate:
        assert any(f"[{gate}]" in row.declined for row in said)
    else:
        assert not any(row.declined for row in said)


@pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])
@pytest.mark.parametrize("hyper", [False, True], ids=["add", "hyper"])
def test_separate_kernels_take_views_too(hyper, moe):
    answers = []
    for ops in (cuda_ops, reference_ops):
        group = Counting(SIZE)
        given, state = forward(group, DecodeContext(group, ops), hyper, moe, views=True)
        answers.append([*given, state])
    for mine, other in zip(*answers, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
