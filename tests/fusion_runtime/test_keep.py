"""Captures whose tensors keep their memory: a disabled kernel's output is still that of the last whole replay."""

from __future__ import annotations

import torch

from fusionscope.fusion_runtime.decode import graph


def test_no_memory_of_a_kept_step_is_used_again() -> None:
    def step() -> tuple[set[int], torch.Tensor]:
        places, x = set(), torch.ones(4, 100_000)
        for _ in range(20):
            x = torch.empty_like(x).copy_(x) + 1
            places.add(x.data_ptr())
        return places, x

    with graph.Keep() as kept:
        places, x = step()
    assert len(places) == 20 and len(kept.held) >= 40
    assert torch.equal(x, step()[1]) and any(one is x for one in kept.held)
