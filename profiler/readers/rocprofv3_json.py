"""rocprofv3's JSON: one object per process, read record by record, so that a file of many GB costs no memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from fusionscope.profiler.readers import packed
from fusionscope.profiler.readers.assemble import CALLS, DEVICE, RANGES, Found, assemble, frame
from fusionscope.profiler.readers.json_stream import JsonStream, decoded, lenient
from fusionscope.profiler.readers.rows import Numbers, category
from fusionscope.profiler.trace import Trace

_HEAD = re.compile(rb'[\s\xef\xbb\xbf]*\{\s*"rocprofiler-sdk-tool"')
#: 146 years: no time is longer.
_TOO_LONG = 1 << 62


# gc=False: these hold no cycles, and a garbage collector that walks them takes as long as reading them.
class _Handle(msgspec.Struct, frozen=True, gc=False):
    handle: int = -1


class _Correlation(msgspec.Struct, frozen=True, gc=False):
    internal: int = -1


class _Dispatch(msgspec.Struct, gc=False):
    kernel_id: int = 0
    dispatch_id: int = -1
    agent_id: _Handle = _Handle()
    queue_id: _Handle = _Handle()


class _Record(msgspec.Struct, gc=False):
    """One record of any kind; only what every table needs."""

    start_timestamp: int
    end_timestamp: int
    kind: int = -1
    operation: int = -1
    thread_id: int = -1
    correlation_id: _Correlation = _Correlation()
    dispatch_info: _Dispatch | None = None
    stream_id: _Handle | None = None
    dst_agent_id: _Handle | None = None
    src_agent_id: _Handle | None = None
    graph_exec_id: int = 0
    graph_node_id: int = -1


_NO_HANDLE, _NO_DISPATCH = _Handle(), _Dispatch()
_decoder = msgspec.json.Decoder(_Record)
_list_decoder = msgspec.json.Decoder(list[_Record])
_any_decoder = msgspec.json.Decoder(list[msgspec.Raw])
_READ = ("kernel_dispatch", "memory_copy", "hip_api", "rccl_api", "marker_api")


def is_rocprofv3(head: bytes) -> bool:
    """Whether the first bytes are those of rocprofv3's JSON."""
    return _HEAD.match(head) is not None


def read(path: str | Path) -> Trace:
    """The tables of one results.json, packed or not. Raises UnreadableTrace with the byte at which it breaks."""
    path = Path(path)
    processes: list[_Process] = []
    try:
        with packed.opened(path) as file:
            stream = JsonStream(file, str(path))
            for key in stream.fields():
                if key == "rocprofiler-sdk-tool":
                    _walk(stream, processes)
                else:
                    stream.value()
            stream.end()
    except packed.DAMAGE as error:
        raise packed.damaged(path, packed.head(path)[0], error) from error
    for process in processes:
        process.resolve()
    found = Found(path, frame(DEVICE, []), machine=_machine(processes))
    if processes:
        found.device = pd.concat([p.device for p in processes], ignore_index=True)
        found.calls = pd.concat([p.calls for p in processes], ignore_index=True)
        found.ranges = pd.concat([p.ranges for p in processes], ignore_index=True)
        found.warnings += [text for p in processes for text in p.warnings]
    return assemble(found)


def _walk(stream: JsonStream, processes: list[_Process]) -> None:
    stream.take(b"[")
    while stream.peek() == b"{":
        process = _Process()
        processes.append(process)
        for key in stream.fields():
            process.read(key, stream)
        if stream.peek() == b",":
            stream.take(b",")
    stream.take(b"]")


_TIMES = ("start_ns", "end_ns", "correlation")


class _Process:
    """What has been read of one process."""

    def __init__(self) -> None:
        self.pid = -1
        self.agents: list[dict[str, Any]] = []
        self.symbols: dict[int, tuple[str, str]] = {}
        self.kinds: list[dict[str, Any]] = []
        self._dispatches = Numbers("device", "stream", "kernel", *_TIMES, "graph", "node")
        self._copies = Numbers("to", "from", "stream", "kind", "operation", *_TIMES)
        self._calls = Numbers("thread", "kind", "operation", *_TIMES)
        self._markers = Numbers("thread", "kind", "operation", *_TIMES)
        self._messages: dict[int, str] = {}
        self.warnings: list[str] = []
        self.device = self.calls = self.ranges = pd.DataFrame()
        self.used: set[int] = set()

    def read(self, key: str, stream: JsonStream) -> None:
        opens = stream.peek()
        if key == "metadata":
            found = lenient(stream.value(), stream)
            pid = found.get("pid") if isinstance(found, dict) else None
            self.pid = pid if isinstance(pid, int) and 0 <= pid < 2**31 else -1
        elif key == "agents" and opens == b"[":
            self.agents = [agent for agent in _values(stream) if isinstance(agent, dict)]
        elif key == "kernel_symbols" and opens == b"[":
            for symbol in _values(stream):
                self._symbol(symbol)
        elif key == "strings" and opens == b"{":
            self._strings(stream)
        elif key in ("buffer_records", "callback_records") and opens == b"{":
            for kind in stream.fields():
                self._records(kind, stream)
        else:
            stream.value()

    def _symbol(self, symbol: Any) -> None:
        if isinstance(symbol, dict) and isinstance(symbol.get("kernel_id"), int):
            raw = str(symbol.get("kernel_name") or "")
            shown = str(symbol.get("formatted_kernel_name") or "")
            # An unknown kernel has a symbol too, whose only name is its number.
            if raw or not shown.isdecimal():
                self.symbols[symbol["kernel_id"]] = (raw or shown, shown or raw)

    def _strings(self, stream: JsonStream) -> None:
        for key in stream.fields():
            value = lenient(stream.value(), stream)
            if key == "buffer_records" and isinstance(value, list):
                self.kinds = [kind if isinstance(kind, dict) else {} for kind in value]
            elif key == "marker_api" and isinstance(value, list):
                self._messages = {
                    one["key"]: str(one.get("value", ""))
                    for one in value
                    if isinstance(one, dict) and isinstance(one.get("key"), int) and 0 <= one["key"] < _TOO_LONG
                }

    def _records(self, kind: str, stream: JsonStream) -> None:
        if stream.peek() != b"[":
            stream.value()
            return
        if kind not in _READ:
            for _ in stream.batches(_skip, lambda raw, _: raw):
                pass
            return
        for records in stream.batches(
            partial(decoded, _list_decoder), lambda raw, stream: _decode_one(raw, stream, kind)
        ):
            times = ([r.start_timestamp for r in records], [r.end_timestamp for r in records])
            if records and not all(min(column) > -_TOO_LONG and max(column) < _TOO_LONG for column in times):
                raise stream.broken(f"has a time that is none in {kind}")
            ends = (*times, [r.correlation_id.internal for r in records])
            if kind == "kernel_dispatch":
                self._dispatches.extend(*_dispatched(records), *ends, *_nodes(records))
            elif kind == "memory_copy":
                self._copies.extend(*_copied(records), *_called(records), *ends)
            else:
                rows = self._markers if kind == "marker_api" else self._calls
                rows.extend([r.thread_id for r in records], *_called(records), *ends)

    def resolve(self) -> None:
        """Names and devices, which may stand behind the records."""
        rows = self._dispatches.frame()
        kernels = rows.drop(columns="kernel").assign(process=self.pid, kind="kernel")
        numbers, codes = np.unique(rows["kernel"], return_inverse=True)
        for column, place in (("name", 0), ("readable", 1)):
            texts = [self.symbols.get(number, ("", ""))[place] or f"kernel {number}" for number in numbers.tolist()]
            kernels[column] = category(texts, codes)
        if unknown := int((~rows["kernel"].isin([k for k, names in self.symbols.items() if names[0]])).sum()):
            self.warnings.append(f"{unknown} of {len(rows)} kernels have no symbol: they carry their number.")
        self.device = pd.concat([kernels, self._copy_rows()], ignore_index=True) if len(self._copies) else kernels
        # As in the CSV and the database; a handle that no agent explains stays what it is.
        devices = {
            _handle(agent): n
            for agent in self.agents
            if type(n := agent.get("logical_node_id")) is int and 0 <= n < 2**31
        }
        self.used = set(self.device["device"].unique())
        told = {handle: devices.get(handle, handle) for handle in self.used}
        self.device["device"] = self.device["device"].map(told).astype("int64")
        calls = self._calls.frame()
        named = self._operations(calls)
        # Most calls launch nothing, and every call costs.
        launch = named.isin([name for name in named.unique() if "Launch" in name])
        self.calls = calls[launch].assign(process=self.pid, name=named[launch])[list(CALLS)]
        marks = self._markers.frame().assign(process=self.pid)
        said = marks["correlation"].map(self._messages)
        self.ranges = marks.assign(name=said.where(said.notna(), self._operations(marks)))[list(RANGES)]

    def _copy_rows(self) -> pd.DataFrame:
        rows = self._copies.frame()
        gpus = {_handle(agent) for agent in self.agents if agent.get("type") == 2}
        device = rows["from"].where(rows["from"].isin(gpus), rows["to"])
        named = rows.assign(
            process=self.pid, device=device, kind="memcpy", name=self._operations(rows), graph=-1, node=-1
        )
        return named.assign(readable=named["name"]).drop(columns=["to", "from", "operation"])

    def _operations(self, rows: pd.DataFrame) -> pd.Series:
        pairs, codes = np.unique(rows[["kind", "operation"]].to_numpy(), axis=0, return_inverse=True)
        names = [self._operation(kind, operation) for kind, operation in pairs.tolist()]
        return pd.Series(np.array([*names, ""], dtype="object")[codes.reshape(-1)], index=rows.index)

    def _operation(self, kind: int, operation: int) -> str:
        """`kind` and `operation` count from 0 in lists that change with every version."""
        names = self.kinds[kind].get("operations") if 0 <= kind < len(self.kinds) else None
        known = isinstance(names, list) and 0 <= operation < len(names)
        return str(names[operation]) if known and names else f"operation {kind}.{operation}"


def _values(stream: JsonStream) -> Iterator[Any]:
    """The values of a list, each decoded as it is."""
    for values in stream.batches(lambda _: None, lenient):
        yield from values


def _skip(block: bytes) -> list[bytes] | None:
    """Other lists have other fields, and may be long: they need only be lists of objects."""
    return None if decoded(_any_decoder, block) is None else []


def _decode_one(raw: bytes, stream: JsonStream, kind: str) -> _Record:
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise stream.broken(f"has a broken record in {kind} ({error})") from error


def _dispatched(records: Sequence[_Record]) -> tuple[list[int], ...]:
    """Device, stream and kernel of each."""
    infos = [r.dispatch_info or _NO_DISPATCH for r in records]
    streams = [(r.stream_id or i.queue_id).handle for r, i in zip(records, infos, strict=True)]
    return [i.agent_id.handle for i in infos], streams, [i.kernel_id for i in infos]


def _nodes(records: Sequence[_Record]) -> tuple[list[int], list[int]]:
    """Graph and node of each, -1 outside a graph."""
    graphs = [r.graph_exec_id if r.graph_exec_id > 0 else -1 for r in records]
    return graphs, [r.graph_node_id if g > 0 else -1 for r, g in zip(records, graphs, strict=True)]


def _copied(records: Sequence[_Record]) -> tuple[list[int], ...]:
    """Where each goes to and comes from, and its stream."""
    ends = ([r.dst_agent_id for r in records], [r.src_agent_id for r in records], [r.stream_id for r in records])
    return tuple([(handle or _NO_HANDLE).handle for handle in column] for column in ends)


def _called(records: Sequence[_Record]) -> tuple[list[int], list[int]]:
    """Kind and operation of each."""
    return [r.kind for r in records], [r.operation for r in records]


def _handle(agent: dict[str, Any]) -> int:
    found = agent.get("id")
    return found["handle"] if isinstance(found, dict) and isinstance(found.get("handle"), int) else -1


def _machine(processes: list[_Process]) -> dict[str, str]:
    gpus = [agent for process in processes for agent in process.agents if _handle(agent) in process.used]
    names = (str(agent.get("product_name") or agent.get("name") or "") for agent in gpus)
    named = ", ".join(dict.fromkeys(name for name in names if name))
    return {"profiler": "rocprofv3", **({"gpu": named} if named else {})}
