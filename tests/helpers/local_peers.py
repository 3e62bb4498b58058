"""A tensor-parallel group whose peers are tensors in this process, and what kernels of a user do with them."""

from __future__ import annotations

from typing import Any

import torch

from fusionscope.fusion_runtime.boundaries import ar_norm, mhc_post
from fusionscope.fusion_runtime.comm.base import Group


class LocalPeers(Group):
    """Rank 0 of `size`; the other ranks' parts are fixed random numbers."""

    kind = "local"
    rank = 0

    def __init__(self, size: int) -> None:
        self.size = size

    def partials(self, x: Any) -> list[Any]:
        draw = torch.Generator().manual_seed(5)
        return [x, *(torch.randn(x.shape, generator=draw) for _ in range(self.size - 1))]

    def all_reduce(self, x: Any) -> Any:
        return torch.stack(self.partials(x)).sum(0)

    def all_gather_last(self, x: Any) -> Any:
        return torch.cat([x] * self.size, -1)


def good_mhc_post(own: Any, peers: list[Any], streams: Any, post: Any, comb: Any) -> Any:
    """A right kernel."""
    return mhc_post.reference([own, *peers], streams, post, comb)


def good_ar_norm(own: Any, peers: list[Any], residual: Any, norm: Any) -> Any:
    """A right kernel with two outputs."""
    return ar_norm.reference([own, *peers], residual, norm)


def forgets_a_rank(own: Any, peers: list[Any], streams: Any, post: Any, comb: Any) -> Any:
    """A wrong kernel."""
    return mhc_post.reference([own, *peers[1:]], streams, post, comb)


def returns_nothing(own: Any, peers: list[Any], streams: Any, post: Any, comb: Any) -> Any:
    """A kernel that leaves its output unwritten."""
    return streams * float("nan")


def raises(own: Any, peers: list[Any], *rest: Any) -> Any:
    """A kernel that does not launch."""
    raise RuntimeError("no such\nlaunch")


not_a_function = 3
