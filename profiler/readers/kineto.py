"""torch.profiler's Chrome JSON (Kineto) from CUDA, ROCm and the CPU, in every spelling since 2020.

Events are read some thousands at a time, so that a file of many GB of python_function events costs no memory.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers.cpu_ops import leaf_operators
from fusionscope.profiler.readers.json_stream import JsonStream, lenient
from fusionscope.profiler.readers.kineto_events import (
    NO_ARGS,
    AnyEvent,
    Columns,
    Ints,
    decode,
    decode_many,
    times_ns,
    whole_number,
    whole_numbers,
)
from fusionscope.profiler.readers.kineto_tables import KINDS, distributed, file_rank, gpu_kernels, machine
from fusionscope.profiler.readers.replays import number_replays
from fusionscope.profiler.trace import Trace, table

# Old Kineto wrote Kernel, Memcpy, Runtime, Operator.
_GPU = {
    "kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}
_CALLS = {"cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime", "hip_driver"}
_OPERATORS = {"cpu_op", "operator"}
_RANGES = {"user_annotation"}


def read(path: str | Path) -> Trace:
    """The tables of one .json or .json.gz file: an object, or a bare list of events.

    The rank comes from distributedInfo (wherever it stands), else the file's name, else 0; a file merged from several
    ranks says the rank of each event. Without any GPU row the leaf operators of the CPU are the launches.
    Raises UnreadableTrace with the byte at which the document breaks, or with what the events lack.
    """
    path = Path(path)
    reading = _Reading()
    try:
        with open(path, "rb") as plain:
            zipped = plain.read(2) == b"\x1f\x8b"
            plain.seek(0)
            stream = JsonStream(cast(BinaryIO, gzip.GzipFile(fileobj=plain)) if zipped else plain, str(path))
            _walk(stream, reading)
    except (OSError, EOFError, zlib.error) as error:
        raise UnreadableTrace(f"{path} cannot be read to its end ({error}): copy the trace again.") from error
    return reading.trace(path)


def _walk(stream: JsonStream, reading: _Reading) -> None:
    if stream.peek() == b"[":
        for events in stream.batches(decode_many, decode):
            reading.add(events)
    else:
        for key in stream.fields():
            if key == "traceEvents" and stream.peek() == b"[":
                for events in stream.batches(decode_many, decode):
                    reading.add(events)
            else:
                reading.metadata[key] = lenient(stream.value(), stream)
    stream.end()


_HOST = ("rank", "process", "thread", "start_ns", "end_ns")


class _Reading:
    """What has been read so far of one file."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self.gpu = Columns(
            "rank", "kind", "device", "stream", "start_ns", "duration_ns", "correlation", "graph", "node", "untimed"
        )
        self.calls = Columns(*_HOST, "correlation")
        self.ranges = Columns(*_HOST)
        self.operators = Columns(*_HOST)
        self.events = 0
        self.with_category = 0
        self.skipped = 0
        self._labels: dict[str, int] = {}

    def add(self, events: Sequence[AnyEvent]) -> None:
        """Take the events whose category says that they are work, calls that launch it, or ranges."""
        self.events += len(events)
        groups: dict[str, list[AnyEvent]] = {}
        for event in events:
            groups.setdefault(event.cat, []).append(event)
        for cat, group in groups.items():
            if cat:
                self.with_category += len(group)
                self._add_category(cat.lower(), group)

    def _add_category(self, category: str, events: list[AnyEvent]) -> None:
        if category in _GPU:
            self._add_gpu(_complete(events), KINDS.index(_GPU[category]))
        elif category in _CALLS:
            calls = [e for e in _complete(events) if "Launch" in e.name and "HostFunc" not in e.name]
            self._add_host(self.calls, calls, correlation=True)
        elif category in _RANGES:
            self._add_host(self.ranges, _complete(events))
        elif category in _OPERATORS and not len(self.gpu):
            self._add_host(self.operators, _complete(events))

    def _ranks(self, events: Sequence[AnyEvent]) -> Ints:
        """Ranks that the events themselves tell of, -1 where the file decides."""
        if all(type(e.pid) is int and (e.args is None or e.args.rank is None) for e in events):
            return np.full(len(events), -1, dtype=np.int64)
        return np.array([self._rank(e) for e in events], dtype=np.int64)

    def _rank(self, event: AnyEvent) -> int:
        args = event.args or NO_ARGS
        if args.rank is not None and 0 <= (rank := whole_number(args.rank)) < 2**20:
            return rank
        if isinstance(event.pid, str) and (label := re.match(r"\[(.+?)\]", event.pid)):
            # SGLang's merged files: pid is "[TP00-DP01] 83". The labels sort as the ranks do; see trace().
            return -2 - self._labels.setdefault(label.group(1), len(self._labels))
        return -1

    def _timed(self, events: list[AnyEvent]) -> tuple[list[AnyEvent], Ints, Ints, NDArray[np.bool_]]:
        """The events with a start; their starts and durations in ns, and which have a duration."""
        start, known = times_ns([e.ts for e in events])
        if not known.all():
            self.skipped += int((~known).sum())
            events, start = [e for e, there in zip(events, known, strict=True) if there], start[known]
        duration, there = times_ns([e.dur for e in events])
        return events, start, np.maximum(np.where(there, duration, 0), 0), there

    def _add_gpu(self, events: list[AnyEvent], kind: int) -> None:
        events, start, duration, there = self._timed(events)
        args = [e.args or NO_ARGS for e in events]
        node, graph = whole_numbers([a.node for a in args]), whole_numbers([a.graph for a in args])
        # The node's graph is in the high 32 bits, its ordinal in the low ones; 0 is "not in a graph".
        known = node > 0
        self.gpu.extend(
            [e.name for e in events],
            rank=self._ranks(events),
            kind=np.full(len(events), kind, dtype=np.int64),
            device=whole_numbers([e.pid if a.device is None else a.device for e, a in zip(events, args, strict=True)]),
            stream=whole_numbers([e.tid if a.stream is None else a.stream for e, a in zip(events, args, strict=True)]),
            start_ns=start,
            duration_ns=duration,
            correlation=whole_numbers([a.correlation for a in args]),
            graph=np.where(known, node >> 32, np.where(graph > 0, graph, -1)),
            node=np.where(known, node & 0xFFFFFFFF, -1),
            # CUPTI leaves start and end at 0 where it did not collect the time.
            untimed=(~there | ((start == 0) & (duration == 0))).astype(np.int64),
        )

    def _add_host(self, columns: Columns, events: list[AnyEvent], correlation: bool = False) -> None:
        events, start, duration, _ = self._timed(events)
        more = {"correlation": whole_numbers([(e.args or NO_ARGS).correlation for e in events])} if correlation else {}
        columns.extend(
            [e.name for e in events],
            rank=self._ranks(events),
            process=whole_numbers([e.pid for e in events]),
            thread=whole_numbers([e.tid for e in events]),
            start_ns=start,
            end_ns=start + duration,
            **more,
        )

    def trace(self, path: Path) -> Trace:
        if not self.with_category:
            raise UnreadableTrace(
                f"{path} has {self.events} events and none with a category (`cat`): it is no torch.profiler trace; "
                "export one with prof.export_chrome_trace()."
            )
        gpu, calls, ranges = self.gpu.frame(), self.calls.frame(), self.ranges.frame()
        graphs = calls["name"].astype(str).str.contains("GraphLaunch")
        if not len(gpu) and graphs.any():
            raise UnreadableTrace(
                f"{path} has {int(graphs.sum())} graph launches and no GPU kernel: the recording is incomplete. Record "
                "with ProfilerActivity.CUDA, synchronize before it stops, and before CUDA 12.6 set "
                "DISABLE_CUPTI_LAZY_REINIT=1 and TEARDOWN_CUPTI=0."
            )
        if not len(gpu) and not len(self.operators):
            raise UnreadableTrace(
                f"{path} has {self.events} events but no GPU kernel and no CPU operator: record with "
                "ProfilerActivity.CUDA (or CPU) while the forward runs."
            )
        warnings: list[str] = []
        if self.skipped:
            warnings.append(f"{self.skipped} of {self.events} events have no readable time and were left out.")
        operators = self.operators.frame() if not len(gpu) else self.operators.frame().iloc[:0]
        frames = [gpu, calls, ranges, operators]
        self._number_ranks(frames, file_rank(self.metadata, path), warnings)
        base = whole_number(self.metadata.get("baseTimeNanoseconds"))
        for frame in frames:
            for column in {"start_ns", "end_ns"} & set(frame.columns):
                frame[column] += max(base, 0)
        gpu.loc[gpu["untimed"] == 1, "start_ns"] = 0
        if untimed := int(gpu["untimed"].sum()):
            warnings.append(f"{untimed} of {len(gpu)} GPU records have no time: the profiler did not collect it.")
        launches = table("launches", calls.assign(is_graph=graphs))
        kernels = gpu_kernels(gpu, launches, ranges) if len(gpu) else leaf_operators(operators, ranges)
        kernels["replay"], doubts = number_replays(kernels, launches)
        return Trace(
            kernels=kernels.sort_values(["rank", "start_ns"], kind="stable").reset_index(drop=True),
            launches=launches.sort_values(["rank", "start_ns"], kind="stable").reset_index(drop=True),
            ranges=table("ranges", ranges.sort_values(["rank", "start_ns"], kind="stable")),
            machine=machine(self.metadata, bool(len(gpu)), warnings),
            warnings=(*warnings, *doubts),
            world_size=max(whole_number(distributed(self.metadata).get("world_size")), 0),
        )

    def _number_ranks(self, frames: list[pd.DataFrame], file_rank: int, warnings: list[str]) -> None:
        order = {label: rank for rank, label in enumerate(sorted(self._labels))}
        if len(order) > 1:
            said = ", ".join(f"rank {rank} is {label}" for label, rank in order.items())
            warnings.append(f"The file holds {len(order)} ranks, numbered by label: {said}.")
        told = {-2 - code: order[label] for label, code in self._labels.items()} | {-1: file_rank}
        for frame in frames:
            ranks, which = np.unique(frame["rank"].to_numpy(), return_inverse=True)
            frame["rank"] = np.array([told.get(rank, rank) for rank in ranks.tolist()], dtype=np.int64)[which]


def _complete(events: list[AnyEvent]) -> list[AnyEvent]:
    return [e for e in events if e.ph == "X"]
