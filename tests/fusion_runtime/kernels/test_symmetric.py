"""Symmetric memory: who may share it, what is said where not, and how its buffer is cut; no GPU needed."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from ranks import run_ranks

from fusionscope.fusion_runtime.comm.channel import inbox_bytes
from fusionscope.fusion_runtime.comm.symmetric import Place, SymmetricGroup, refusal
from fusionscope.fusion_runtime.errors import NoSymmetricMemory

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
        self.capacity, self._used, self._buffer = capacity, 0, memories[rank]
        self._addresses = [memory.data_ptr() for memory in memories]


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


def test_what_no_longer_fits_is_said_and_raised():
    (group, _) = pretended(capacity=1024)
    assert group.no_room(2, 64, torch.bfloat16) is None
    group.channel(2, 64, torch.bfloat16)
    assert group.no_room(2, 64, torch.bfloat16) is None, "a channel that is there stays"
    assert "1024 bytes has 0 left" in group.no_room(1, 64, torch.bfloat16)
    with pytest.raises(NoSymmetricMemory, match="larger capacity"):
        group.channel(1, 64, torch.bfloat16)


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
