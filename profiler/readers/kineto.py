"""torch.profiler's Chrome JSON (Kineto) from CUDA, ROCm and the CPU, in every spelling since 2020.

Events are read one by one, so that a file of many GB of python_function events costs no memory.
"""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

import pandas as pd

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers.copies import kind_of
from fusionscope.profiler.readers.cpu_ops import leaf_operators
from fusionscope.profiler.readers.json_stream import JsonStream, lenient
from fusionscope.profiler.readers.kineto_events import NO_ARGS, Columns, Event, decode, microseconds, whole_number
from fusionscope.profiler.readers.names import rank_in_name
from fusionscope.profiler.readers.replays import KEY, number_replays
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
        for event in stream.items():
            reading.add(event, stream)
    else:
        for key in stream.fields():
            if key == "traceEvents" and stream.peek() == b"[":
                for event in stream.items():
                    reading.add(event, stream)
            else:
                reading.metadata[key] = lenient(stream.value(), stream)
    stream.end()


_HOST = ("rank", "process", "thread", "start_ns", "end_ns")
_KINDS = ("kernel", "memcpy", "memset")


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

    def add(self, raw: bytes, stream: JsonStream) -> None:
        self.events += 1
        event = decode(raw, stream)
        if not event.cat:
            return
        self.with_category += 1
        if event.ph != "X":
            return
        category = event.cat.lower()
        if category in _GPU:
            self._add_gpu(event, _GPU[category])
        elif category in _CALLS:
            if "Launch" in event.name and "HostFunc" not in event.name:
                args = event.args or NO_ARGS
                self._add_host(self.calls, event, whole_number(args.correlation))
        elif category in _RANGES:
            self._add_host(self.ranges, event)
        elif category in _OPERATORS and not len(self.gpu):
            self._add_host(self.operators, event)

    def _rank(self, event: Event) -> int:
        """Rank that the event itself tells of, -1 where the file decides."""
        args = event.args or NO_ARGS
        if args.rank is not None and 0 <= (rank := whole_number(args.rank)) < 2**20:
            return rank
        if isinstance(event.pid, str) and (label := re.match(r"\[(.+?)\]", event.pid)):
            # SGLang's merged files: pid is "[TP00-DP01] 83". The labels sort as the ranks do; see trace().
            return -2 - self._labels.setdefault(label.group(1), len(self._labels))
        return -1

    def _add_gpu(self, event: Event, kind: str) -> None:
        args = event.args or NO_ARGS
        start, duration = microseconds(event.ts), microseconds(event.dur)
        if start is None:
            self.skipped += 1
            return
        device = whole_number(args.device if args.device is not None else event.pid)
        queue = whole_number(args.stream if args.stream is not None else event.tid)
        # The node's graph is in the high 32 bits, its ordinal in the low ones; 0 is "not in a graph".
        node, graph = whole_number(args.node), whole_number(args.graph)
        if node > 0:
            graph, node = node >> 32, node & 0xFFFFFFFF
        else:
            graph, node = (graph if graph > 0 else -1), -1
        # CUPTI leaves start and end at 0 where it did not collect the time.
        untimed = duration is None or (start == 0 and duration == 0)
        self.gpu.add(
            event.name,
            self._rank(event),
            _KINDS.index(kind_of(event.name, kind)),
            device,
            queue,
            start,
            max(duration or 0, 0),
            whole_number(args.correlation),
            graph,
            node,
            int(untimed),
        )

    def _add_host(self, columns: Columns, event: Event, *more: int) -> None:
        start, duration = microseconds(event.ts), microseconds(event.dur)
        if start is None:
            self.skipped += 1
            return
        end = start + max(duration or 0, 0)
        columns.add(event.name, self._rank(event), whole_number(event.pid), whole_number(event.tid), start, end, *more)

    def trace(self, path: Path) -> Trace:
        if not self.with_category:
            raise UnreadableTrace(
                f"{path} has {self.events} events and none with a category (`cat`): it is no torch.profiler trace; "
                "export one with prof.export_chrome_trace()."
            )
        if not len(self.gpu) and not len(self.operators):
            raise UnreadableTrace(
                f"{path} has {self.events} events but no GPU kernel and no CPU operator: record with "
                "ProfilerActivity.CUDA (or CPU) while the forward runs."
            )
        warnings: list[str] = []
        if self.skipped:
            warnings.append(f"{self.skipped} of {self.events} events have no readable time and were left out.")
        gpu, calls, ranges = self.gpu.frame(), self.calls.frame(), self.ranges.frame()
        operators = self.operators.frame() if not len(gpu) else self.operators.frame().iloc[:0]
        frames = [gpu, calls, ranges, operators]
        self._number_ranks(frames, _file_rank(self.metadata, path), warnings)
        base = whole_number(self.metadata.get("baseTimeNanoseconds"))
        for frame in frames:
            for column in {"start_ns", "end_ns"} & set(frame.columns):
                frame[column] += max(base, 0)
        gpu.loc[gpu["untimed"] == 1, "start_ns"] = 0
        if untimed := int(gpu["untimed"].sum()):
            warnings.append(f"{untimed} of {len(gpu)} GPU records have no time: the profiler did not collect it.")
        launches = table("launches", calls.assign(is_graph=calls["name"].astype(str).str.contains("GraphLaunch")))
        kernels = _kernels(gpu, launches, ranges) if len(gpu) else leaf_operators(operators, ranges)
        kernels["replay"], doubts = number_replays(kernels, launches)
        return Trace(
            kernels=kernels.sort_values(["rank", "start_ns"], kind="stable").reset_index(drop=True),
            launches=launches.sort_values(["rank", "start_ns"], kind="stable").reset_index(drop=True),
            ranges=table("ranges", ranges.sort_values(["rank", "start_ns"], kind="stable")),
            machine=_machine(self.metadata, bool(len(gpu)), warnings),
            warnings=(*warnings, *doubts),
            world_size=max(whole_number(_distributed(self.metadata).get("world_size")), 0),
        )

    def _number_ranks(self, frames: list[pd.DataFrame], file_rank: int, warnings: list[str]) -> None:
        order = {label: rank for rank, label in enumerate(sorted(self._labels))}
        if len(order) > 1:
            said = ", ".join(f"rank {rank} is {label}" for label, rank in order.items())
            warnings.append(f"The file holds {len(order)} ranks, numbered by label: {said}.")
        told = {-2 - code: order[label] for label, code in self._labels.items()} | {-1: file_rank}
        for frame in frames:
            frame["rank"] = frame["rank"].map(lambda rank: told.get(rank, rank)).astype("int64")


def _kernels(gpu: pd.DataFrame, launches: pd.DataFrame, ranges: pd.DataFrame) -> pd.DataFrame:
    """GPU rows know their device, not their process: that is the launching call's, else the rank's only one."""
    host = pd.concat([launches[["rank", "process"]], ranges[["rank", "process"]]])
    usual = host.groupby("rank")["process"].agg(lambda found: int(found.mode().iloc[0]))
    by_call = launches.drop_duplicates(["rank", "correlation"])[KEY]
    found = gpu[["rank", "correlation"]].merge(by_call, on=["rank", "correlation"], how="left")["process"]
    process = found.fillna(gpu["rank"].map(usual)).fillna(-1).astype("int64")
    raw = gpu["name"]
    short = {name: re.sub(r"(?: \[clone \.kd\]|\.kd)$", "", name) for name in raw.cat.categories}
    kinds = pd.Categorical.from_codes(gpu["kind"].tolist(), categories=pd.Index(_KINDS))
    rest = gpu.drop(columns=["kind", "name"])
    named = rest.assign(process=process, kind=kinds, raw_name=raw, name=raw.astype("object").map(short))
    return table("kernels", named)


def _distributed(metadata: dict[str, Any]) -> dict[str, Any]:
    found = metadata.get("distributedInfo")
    return found if isinstance(found, dict) else {}


def _file_rank(metadata: dict[str, Any], path: Path) -> int:
    told = whole_number(_distributed(metadata).get("rank"))
    if 0 <= told < 2**20:
        return told
    return rank_in_name(path)


def _machine(metadata: dict[str, Any], has_gpu: bool, warnings: list[str]) -> dict[str, str]:
    machine = {"profiler": "torch.profiler"}
    devices = metadata.get("deviceProperties")
    names = [str(d.get("name") or "") for d in devices if isinstance(d, dict)] if isinstance(devices, list) else []
    if gpu := ", ".join(dict.fromkeys(name for name in names if name)):
        machine["gpu"] = gpu
    elif has_gpu:
        warnings.append("The file does not name its GPU.")
    for key, value in metadata.items():
        if key.endswith("_version") and isinstance(value, int | str):
            machine[key] = str(value)
    if isinstance(nccl := _distributed(metadata).get("nccl_version"), str):
        machine["nccl_version"] = nccl
    return machine
