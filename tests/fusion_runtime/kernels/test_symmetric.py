"""Symmetric memory: who may share it, what is said where not, and how its buffer is cut; no GPU needed."""

from __future__ import annotations

import os
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from ranks import run_ranks

from fusionscope.fusion_runtime.comm.channel import default_block, inbox_bytes, row_block
from fusionscope.fusion_runtime.comm.loopback import GATHER_BLOCK
from fusionscope.fusion_runtime.comm.symmetric import Place, SymmetricGroup, check_same_channel, refusal
from fusionscope.fusion_runtime.errors import NoSymmetricMemory, RanksDisagree

A = Place(0, "host", "cuda", "GPU-a", "H200", ("GPU-b",))
B = Place(1, "host", "cuda", "GPU-b", "H200", ("GPU-a",))


def test_two_gpus_that_reach_each_other_may():
    assert refusal([A, B]) == ""
    # A launcher that shows each rank its own GPU alone leaves nothing to be known.
    assert refusal([replace(A, reachable=None), replace(B, reachable=None)]) == ""


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ([replace(A, device="cpu"), B], "rank 0 is on cpu"),
        ([A, replace(B, gpu="GPU-a")], "Ranks 0 and 1 are on one GPU"),
        ([A, replace(B, host="other")], "rank 1 on other"),
        ([A, replace(B, capacity=1)], "rank 1 for 1"),
        ([A, replace(B, reachable=())], "The GPU of rank 1 cannot reach the memory of rank 0's"),
        ([replace(A, reachable=()), B], "The GPU of rank 0 cannot reach the memory of rank 1's"),
    ],
)
def test_refusals_name_the_ranks_and_what_to_do(places, said):
    sentence = refusal(places)
    assert said in sentence and ":" in sentence and sentence.endswith(".")


class Pretended(SymmetricGroup):
    """A rank of two whose buffers lie in this process's memory."""

    kind = "pretended"

    def __init__(self, rank, memories, capacity):
        super(SymmetricGroup.__mro__[1], self).__init__()
        self.rank, self.size, self.device = rank, len(memories), torch.device("cpu")
        self.capacity, self._used, self._buffer, self._shared = capacity, 0, memories[rank], {}
        self._addresses = [memory.data_ptr() for memory in memories]

    def _check_same(self, tokens, width, dtype, block):
        """These ranks run one after the other and cannot wait."""


def pretended(capacity=1 << 14, ranks=2):
    memories = [torch.full((capacity,), -1, dtype=torch.int8) for _ in range(ranks)]
    return [Pretended(rank, memories, capacity) for rank in range(ranks)]


def test_channels_are_cut_at_the_same_places_on_every_rank():
    ranks = pretended()
    for group in ranks:
        first, second = group.channel(2, 24, torch.bfloat16), group.channel(3, 24, torch.bfloat16)
        assert first is group.channel(2, 24, torch.bfloat16)
        apart = second.inboxes - first.inboxes
        assert apart.tolist() == [inbox_bytes(2, 2, 24, torch.bfloat16)] * 2
        assert first.first_rank == group.rank and not first.emulate
    assert torch.equal(ranks[0].channel(2, 24, torch.bfloat16).inboxes, ranks[1].channel(2, 24, torch.bfloat16).inboxes)


def test_numbers_of_tokens_up_to_a_power_of_two_share_their_inboxes():
    (group, _) = pretended(capacity=3 * inbox_bytes(2, 4, 64, torch.bfloat16))
    four, three = group.channel(4, 64, torch.bfloat16, 32), group.channel(3, 64, torch.bfloat16, 32)
    assert three.inboxes is four.inboxes and three.epochs is four.epochs and three.sums is four.sums
    assert (three.tokens, three.programs, three.elements) == (3, 6, four.elements)
    five = group.channel(5, 64, torch.bfloat16, 32)
    assert five.inboxes[0] - four.inboxes[0] == inbox_bytes(2, 4, 64, torch.bfloat16)
    assert all(group.no_room(tokens, 64, torch.bfloat16, 32) is None for tokens in range(3, 9))
    assert "has 0 left" in group.no_room(2, 64, torch.bfloat16, 32)


def test_what_no_longer_fits_is_said_and_raised():
    (group, _) = pretended(capacity=1024)
    assert group.no_room(2, 64, torch.bfloat16) is None
    group.channel(2, 64, torch.bfloat16)
    assert group.no_room(2, 64, torch.bfloat16) is None, "a channel that is there stays"
    assert "1024 bytes has 0 left" in group.no_room(1, 64, torch.bfloat16)
    with pytest.raises(NoSymmetricMemory, match="larger capacity"):
        group.channel(1, 64, torch.bfloat16)


def test_ranks_that_exchange_different_shapes_all_hear_of_it():
    store = torch.distributed.HashStore()
    wanted = {0: (4, 64, torch.bfloat16, 64), 1: (4, 64, torch.bfloat16, 64), 2: (8, 64, torch.bfloat16, 64)}

    def said(rank, number, asked):
        try:
            check_same_channel(store, rank, 3, number, asked)
        except RanksDisagree as error:
            return str(error)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda rank: said(rank, 0, wanted[0]), range(3))) == [None] * 3
        answers = list(pool.map(lambda rank: said(rank, 1, wanted[rank]), range(3)))
    assert "rank 0 exchanges [4, 64] of torch.bfloat16 in blocks of 64 and rank 2 [8, 64]" in answers[0]
    assert all("run the same batch" in answer for answer in answers)


REFUSED = """
from fusionscope.fusion_runtime.comm.symmetric import SymmetricGroup
from fusionscope.fusion_runtime.errors import NoSymmetricMemory

half = dist.new_group([0, 1])
# Two ranks have made a group more than the third when all three meet.
for members in ([half, half] if rank < 2 else []) + [None]:
    try:
        SymmetricGroup(members, device="cpu")
    except NoSymmetricMemory as error:
        print(error)
"""


def test_ranks_without_a_gpu_are_refused_alike():
    first, second, third = run_ranks(3, REFUSED, timeout=120)
    assert first == second == third * 3
    assert third.count("needs a GPU on every rank and rank 0 is on cpu") == 1


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="triton compiles here; its interpreter is needed")
def test_each_rank_launches_for_itself():
    pytest.importorskip("triton")
    from fusionscope.fusion_runtime.boundaries import mhc_post
    from fusionscope.fusion_runtime.kernels import launch

    groups = pretended(ranks=3, capacity=1 << 16)
    channels = [group.channel(2, 24, torch.float32, 16) for group in groups]
    streams, post, comb = torch.randn(2, 4, 24), torch.rand(2, 4), torch.rand(2, 4, 4)
    for _ in range(3):
        x = torch.randn(3, 2, 24)
        for rank, channel in enumerate(channels):
            launch.ar_hc_post(x[rank], streams, post, comb, channel, (1,))
        want = mhc_post.reference(list(x), streams, post, comb)
        for rank, channel in enumerate(channels):
            got = launch.ar_hc_post(x[rank], streams, post, comb, channel, (2, 4, 8))
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert all((group._buffer == -1).all() for group in groups)


def all_reduced(x, channel, stages):
    from fusionscope.fusion_runtime.kernels import launch

    return launch.all_reduce(x, channel, (sum(stages),))


def joined(x, channel, stages):
    """Four tokens a program; what is written into the first of streams that hold nothing is the sum."""
    from fusionscope.fusion_runtime.kernels.launch_mhc_pre import Tile, post_and_project

    tokens, width = x.shape
    post, comb = torch.ones(tokens, 4), torch.zeros(tokens, 4, 4)
    beside = torch.zeros(tokens, 4, width), post, comb, torch.zeros(24, 4 * width)
    stages = (sum(stage for stage in stages if stage != 4),)
    return post_and_project(x, *beside, channel, Tile(channel.block, 4, 4), stages)[0][:, 0]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="triton compiles here; its interpreter is needed")
@pytest.mark.parametrize(
    ("order", "exchange", "rows"), [*((n, all_reduced, 1) for n in range(4)), *((n, joined, 4) for n in range(2))]
)
def test_no_rank_writes_over_what_another_has_not_read(order, exchange, rows):
    """Any order of pushes and reads that waiting allows, one rank as far ahead as it can get; tokens come and go."""
    pytest.importorskip("triton")

    ranks, turns, most, width, draw = 3, 6, 8, 8, random.Random(order)
    sizes = [draw.randint(5, most) for _ in range(turns)]
    # A token's slot changes with each exchange of the first token of its program.
    first = [token // rows * rows for token in range(most)]
    slots = [[sum(size > token for size in sizes[:turn]) % 2 for token in first] for turn in range(turns)]
    groups = pretended(ranks=ranks)
    channels = [[group.channel(size, width, torch.float32, 8) for size in sizes] for group in groups]
    inboxes = [group._buffer.view(torch.int32)[: 2 * ranks * most * width] for group in groups]
    inboxes = [inbox.view(2, ranks, most, width) for inbox in inboxes]
    x = [torch.randn(ranks, size, width) for size in sizes]
    pushed, read, ahead = [0] * ranks, [0] * ranks, 0

    def parts(turn, owner, writer):
        return torch.stack([inboxes[owner][slots[turn][token], writer, token] for token in range(sizes[turn])])

    def may_read(rank):
        others = [parts(read[rank], rank, peer) for peer in range(ranks) if peer != rank]
        return all((part != -1).all() for part in others)

    while min(read) < turns:
        able = [r for r in range(ranks) if pushed[r] == read[r] < turns or (pushed[r] > read[r] and may_read(r))]
        # The first order always favours rank 0; the others are drawn.
        rank = able[0] if order == 0 else draw.choice(able)
        turn = read[rank]
        if pushed[rank] == turn:
            assert all((parts(turn, peer, rank) == -1).all() for peer in range(ranks) if peer != rank)
            exchange(x[turn][rank], channels[rank][turn], (1,))
            pushed[rank] += 1
            ahead = max(ahead, pushed[rank] - min(read))
        else:
            got = exchange(x[turn][rank], channels[rank][turn], (2, 4, 8))
            torch.testing.assert_close(got, x[turn].sum(0), rtol=1e-5, atol=1e-5)
            read[rank] += 1
    assert ahead == 2, "a rank is never more than one exchange ahead of what the slowest has read"
    assert all((group._buffer == -1).all() for group in groups)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="triton compiles here; its interpreter is needed")
def test_programs_of_a_row_tell_each_other_whatever_number_of_tokens_came_before():
    pytest.importorskip("triton")
    from fusionscope.fusion_runtime.boundaries import ar_norm
    from fusionscope.fusion_runtime.kernels import launch
    from fusionscope.fusion_runtime.norms import Norm

    groups, norm = pretended(), Norm(torch.randn(24), 1e-5)
    for tokens in (4, 3, 3, 4, 3, 4, 4):
        channels = [group.channel(tokens, 24, torch.float32, 8) for group in groups]
        assert channels[0].blocks == 3
        x, residual = torch.randn(2, tokens, 24), torch.randn(tokens, 24)
        for rank, channel in enumerate(channels):
            launch.all_reduce_norm(x[rank], residual, norm, channel, None, (1,))
        want = ar_norm.reference(list(x), residual, norm)
        for rank, channel in enumerate(channels):
            got = launch.all_reduce_norm(x[rank], residual, norm, channel, None, (2, 4, 8))
            for mine, other in zip(got, want, strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    assert all((group._buffer == -1).all() for group in groups)


def test_a_norm_of_shared_rows_has_its_channel_for_itself():
    for width in range(8, 20_000, 8):
        block = row_block(width)
        assert block >= width or block not in (default_block(width), GATHER_BLOCK)
