"""A group of ranks that are threads of this process, and a GPU that torch takes for a Hopper."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
torch.set_num_threads(1)


@pytest.fixture
def lockstep() -> Callable[..., list[Any]]:
    """run(size, work): calls work(group) once per rank, all at once; returns the results in rank order."""
    from fusionscope.fusion_runtime.comm.base import Group

    class Lockstep(Group):
        kind = "threads"

        def __init__(self, rank: int, size: int, slots: list[Any], barrier: threading.Barrier) -> None:
            self.rank, self.size, self.slots, self.barrier = rank, size, slots, barrier

        def _exchange(self, x: Any) -> list[Any]:
            self.slots[self.rank] = x.clone()
            self.barrier.wait(60)
            everyone = list(self.slots)
            self.barrier.wait(60)
            return everyone

        def all_reduce(self, x: Any) -> Any:
            return torch.stack(self._exchange(x)).sum(0)

        def all_gather_last(self, x: Any) -> Any:
            return torch.cat(self._exchange(x), -1)

    def run(size: int, work: Callable[[Group], Any]) -> list[Any]:
        slots: list[Any] = [None] * size
        barrier = threading.Barrier(size)

        def guarded(rank: int) -> Any:
            try:
                return work(Lockstep(rank, size, slots, barrier))
            except BaseException:
                barrier.abort()
                raise

        with ThreadPoolExecutor(size) as pool:
            return [job.result() for job in [pool.submit(guarded, rank) for rank in range(size)]]

    return run


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a path asks of the GPU before it takes a site."""
    torch.manual_seed(0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
