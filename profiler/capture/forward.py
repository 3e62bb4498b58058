"""The decode forward that a rank replays: on the CPU a step, on CUDA a captured graph."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fusionscope.profiler.capture.messages import SiteNote
from fusionscope.profiler.capture.plan import CapturePlan

#: Forwards that run before anything is timed: compilation, autotuning and allocation happen here.
_WARMUP = 2
#: How long real ranks spin before they begin together, clock cycles (0.5 ms): longer than a graph takes to be launched.
_SPIN_CYCLES = 1_000_000


class Replayed(ABC):
    """One rank's forward, ready to be replayed with the same work each time."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.spec = model.spec
        self.device_index = 0

    @abstractmethod
    def timed(self, aligned: bool = True) -> int:
        """Replay once and wait for its end; the time in ns. `aligned`: all ranks begin together."""

    @abstractmethod
    def fresh(self) -> None:
        """Get every rank to the same place with nothing left to run."""

    @abstractmethod
    def sites(self) -> list[SiteNote]:
        """The sites of one forward, in the order in which they were opened."""

    def edges(self) -> list[tuple[int, int, bool]]:
        """Edges of the captured graph: (source, target, programmatic)."""
        return []

    def nodes(self) -> int:
        """Nodes of the captured graph."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """Let go of what must end before the group does; nothing can be replayed afterwards."""


class CpuForward(Replayed):
    """Each replay is one step; its time is wall-clock time of this process."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        for _ in range(_WARMUP):
            model.step()

    def timed(self, aligned: bool = True) -> int:
        if aligned:
            barrier()
        begin = time.perf_counter_ns()
        self.model.step()
        return time.perf_counter_ns() - begin

    def fresh(self) -> None:
        barrier()

    def sites(self) -> list[SiteNote]:
        return notes(self.model.ctx.recorder.rows)

    def close(self) -> None:
        """A CPU forward holds nothing of the group."""


class CudaForward(Replayed):
    """Each replay is one launch of the captured graph; its time lies between two CUDA events."""

    def __init__(self, model: Any, padding: Sequence[int] = (), keep: bool = False) -> None:
        import torch

        from fusionscope.fusion_runtime.decode import graph

        super().__init__(model)
        self.captured = graph.capture(model, padding, keep)
        self.device_index = torch.cuda.current_device()
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        self._token = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()

    def again(self, paths: dict[str, str], padding: Sequence[int] = ()) -> CudaForward:
        """The same model, weights and buffers captured once more, with these paths; this one stays as it is.

        `padding` as of `fusion_runtime.decode.graph.capture`.
        """
        from fusionscope.fusion_runtime.context import PathChoice
        from fusionscope.fusion_runtime.decode.model import make_context

        self.model.ctx = make_context(self.model.group, self.model.device, PathChoice(paths))
        return CudaForward(self.model, padding)

    def timed(self, aligned: bool = True) -> int:
        begin, end = self._events
        if aligned:
            self._meet()
        begin.record()
        self.captured.replay()
        end.record()
        end.synchronize()
        return round(float(begin.elapsed_time(end)) * 1e6)

    def _meet(self) -> None:
        """Real ranks meet on their GPUs when the hosts have launched what follows, so that nothing waits for a host."""
        import torch
        import torch.distributed as dist

        if dist.is_initialized() and dist.get_world_size() > 1:
            torch.cuda._sleep(_SPIN_CYCLES)
            dist.all_reduce(self._token)

    def fresh(self) -> None:
        import torch

        torch.cuda.synchronize()
        barrier()

    def sites(self) -> list[SiteNote]:
        return notes(self.captured.site_rows)

    def edges(self) -> list[tuple[int, int, bool]]:
        return [(int(edge[0]), int(edge[1]), bool(edge[2]) if len(edge) > 2 else False) for edge in self.captured.edges]

    def nodes(self) -> int:
        return int(self.captured.node_count)

    def close(self) -> None:
        import torch

        torch.cuda.synchronize()
        # NCCL does not end a communicator while a graph still holds its kernels: destroying the group would hang.
        self.captured.graph.reset()


def notes(rows: Any) -> list[SiteNote]:
    """The recorder's rows as messages."""
    return [
        SiteNote(
            boundary=row.boundary,
            subtype=row.subtype,
            layer=row.layer,
            path=row.path,
            declined=row.declined,
            first_node=row.first_node,
            last_node=row.last_node,
        )
        for row in rows
    ]


def barrier() -> None:
    """Wait for the other ranks, where there are any."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()


@contextmanager
def group_of(plan: CapturePlan, candidate: Mapping[str, str] | None = None) -> Iterator[Any]:
    """The tensor-parallel group of this rank, for the plan's paths and a candidate's: gloo or NCCL, loopback, or one
    rank alone."""
    import torch
    import torch.distributed as dist

    from fusionscope.fusion_runtime.comm.single import SingleGroup

    local = int(os.environ.get("LOCAL_RANK", "0"))
    if plan.device == "cpu":
        torch.set_num_threads(1)
    else:
        torch.cuda.set_device(local)
    if plan.tp == 1:
        yield SingleGroup()
        return
    if plan.emulated:
        from fusionscope.fusion_runtime.comm.loopback import Loopback

        yield Loopback(plan.tp, seed=plan.seed)
        return
    from fusionscope.fusion_runtime.comm.process_group import ProcessGroup

    if plan.device == "cpu":
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    try:
        yield ProcessGroup() if plan.device == "cpu" else _group_for(plan.paths, candidate or {})
        barrier()
    finally:
        dist.destroy_process_group()


def _group_for(*choices: Mapping[str, str]) -> Any:
    """A group of GPUs whose kernels reach the other ranks' memory, where a path was chosen that needs it."""
    from fusionscope.fusion_runtime.comm.process_group import ProcessGroup
    from fusionscope.fusion_runtime.comm.symmetric import SymmetricGroup
    from fusionscope.fusion_runtime.errors import NoSymmetricMemory

    wanted = {path for chosen in choices for path in chosen.values()}
    if not wanted & {"triton", "flashinfer", "auto"}:
        return ProcessGroup()
    try:
        return SymmetricGroup()
    except NoSymmetricMemory:
        if "auto" not in wanted:
            raise
        return ProcessGroup()


def spec_of(model: str, device: str, layers: int) -> Any:
    """The model's specification for a device: on the CPU the widths shrink, `layers` keeps the first ones only.

    Raises BadSpec for an unknown model or no layers at all.
    """
    from dataclasses import replace

    from fusionscope.fusion_runtime.decode.spec import MODELS
    from fusionscope.fusion_runtime.errors import BadSpec

    if model not in MODELS:
        raise BadSpec(f"There is no model {model!r}; --model takes one of: {', '.join(MODELS)}.")
    spec = MODELS[model]
    if device == "cpu":
        scaled = spec.scaled()
        # A model that is small already keeps its true shapes, and no label says otherwise.
        spec = spec if replace(scaled, is_scaled=spec.is_scaled) == spec else scaled
    return spec.truncated(layers) if layers else spec


def build(plan: CapturePlan, group: Any, padding: Sequence[int] = (), keep: bool = False) -> Replayed:
    """The forward of this rank, warmed up (on CUDA: captured, its buffers behind `padding`; `keep` as of `capture`)."""
    from fusionscope.fusion_runtime.context import PathChoice
    from fusionscope.fusion_runtime.decode.model import DecodeModel, make_context

    spec = spec_of(plan.model, plan.device, plan.layers)
    ctx = make_context(group, plan.device, PathChoice(plan.paths))
    model = DecodeModel(spec, group, plan.batch, plan.context, plan.device, ctx, plan.seed)
    return CpuForward(model) if plan.device == "cpu" else CudaForward(model, padding, keep)
