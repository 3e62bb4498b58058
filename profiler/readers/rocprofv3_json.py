"""rocprofv3's JSON: one object per process, read record by record, so that a file of many GB costs no memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from fusionscope.profiler.readers import packed
from fusionscope.profiler.readers.assemble import CALLS, DEVICE, RANGES, Found, assemble, frame
from fusionscope.profiler.readers.json_stream import JsonStream, lenient
from fusionscope.profiler.readers.rows import Numbers
from fusionscope.profiler.trace import Trace

_HEAD = re.compile(rb'[\s\xef\xbb\xbf]*\{\s*"rocprofiler-sdk-tool"')
_NONE = (1 << 63) - 1


class _Handle(msgspec.Struct, frozen=True):
    handle: int = -1


class _Correlation(msgspec.Struct, frozen=True):
    internal: int = -1


class _Dispatch(msgspec.Struct):
    kernel_id: int = 0
    dispatch_id: int = -1
    agent_id: _Handle = _Handle()
    queue_id: _Handle = _Handle()


class _Record(msgspec.Struct):
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


_decoder = msgspec.json.Decoder(_Record)
_list_decoder = msgspec.json.Decoder(list[_Record | None])
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
                    one["key"]: str(one.get("value", "")) for one in value if isinstance(one, dict) and "key" in one
                }

    def _records(self, kind: str, stream: JsonStream) -> None:
        if stream.peek() != b"[":
            stream.value()
            return
        if kind not in _READ:
            for _ in stream.batches(_skip, lambda raw, _: raw):
                pass
            return
        for record in _decoded(kind, stream):
            if kind == "kernel_dispatch":
                self._dispatch(record)
            elif kind == "memory_copy":
                self._copy(record)
            elif kind in ("hip_api", "rccl_api"):
                self._calls.add(*_host(record))
            elif kind == "marker_api":
                self._markers.add(*_host(record))

    def _dispatch(self, record: _Record) -> None:
        info = record.dispatch_info or _Dispatch()
        stream = record.stream_id.handle if record.stream_id else info.queue_id.handle
        graph = record.graph_exec_id if record.graph_exec_id > 0 else -1
        self._dispatches.add(
            info.agent_id.handle,
            stream,
            info.kernel_id,
            record.start_timestamp,
            record.end_timestamp,
            record.correlation_id.internal,
            graph,
            record.graph_node_id if graph > 0 else -1,
        )

    def _copy(self, record: _Record) -> None:
        to, source = (h.handle if h else -1 for h in (record.dst_agent_id, record.src_agent_id))
        stream = record.stream_id.handle if record.stream_id else -1
        ends = (record.start_timestamp, record.end_timestamp, record.correlation_id.internal)
        self._copies.add(to, source, stream, record.kind, record.operation, *ends)

    def resolve(self) -> None:
        """Names and devices, which may stand behind the records."""
        rows = self._dispatches.frame()
        kernels = rows.drop(columns="kernel").assign(process=self.pid, kind="kernel")
        for column, place in (("name", 0), ("readable", 1)):
            told = {kernel: self.symbols.get(kernel, ("", ""))[place] for kernel in rows["kernel"].unique()}
            numbered = {kernel: text or f"kernel {kernel}" for kernel, text in told.items()}
            kernels[column] = rows["kernel"].map(numbered).astype("object")
        if unknown := int((~rows["kernel"].isin([k for k, names in self.symbols.items() if names[0]])).sum()):
            self.warnings.append(f"{unknown} of {len(rows)} kernels have no symbol: they carry their number.")
        self.device = pd.concat([kernels, self._copy_rows()], ignore_index=True) if len(self._copies) else kernels
        # As in the CSV and the database; a handle that no agent explains stays what it is.
        numbers = {
            _handle(agent): n
            for agent in self.agents
            if type(n := agent.get("logical_node_id")) is int and 0 <= n < 2**31
        }
        self.used = set(self.device["device"].unique())
        self.device["device"] = self.device["device"].map(lambda handle: numbers.get(handle, handle)).astype("int64")
        calls = self._calls.frame().assign(process=self.pid)
        self.calls = calls.assign(name=self._operations(calls))[list(CALLS)]
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
        pairs = zip(rows["kind"], rows["operation"], strict=True)
        return pd.Series([self._operation(int(k), int(o)) for k, o in pairs], index=rows.index, dtype="object")

    def _operation(self, kind: int, operation: int) -> str:
        """`kind` and `operation` count from 0 in lists that change with every version."""
        names = self.kinds[kind].get("operations") if 0 <= kind < len(self.kinds) else None
        known = isinstance(names, list) and 0 <= operation < len(names)
        return str(names[operation]) if known and names else f"operation {kind}.{operation}"


def _values(stream: JsonStream) -> Iterator[Any]:
    """The values of a list, each decoded as it is."""
    for values in stream.batches(lambda _: None, lenient):
        yield from values


def _decoded(kind: str, stream: JsonStream) -> Iterator[_Record]:
    def one(raw: bytes, stream: JsonStream) -> _Record | None:
        try:
            return _decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise stream.broken(f"has a broken record in {kind} ({error})") from error

    for records in stream.batches(_decode_many, one):
        for record in records:
            if record is None or max(abs(record.start_timestamp), abs(record.end_timestamp)) > _NONE // 2:
                raise stream.broken(f"has a time that is none in {kind}")
            yield record


def _skip(block: bytes) -> list[bytes] | None:
    """Other lists have other fields, and may be long: they need only be lists of objects."""
    try:
        msgspec.json.decode(b"[" + block + b"]", type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return []


def _decode_many(block: bytes) -> list[_Record | None] | None:
    try:
        return _list_decoder.decode(b"[" + block + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _host(record: _Record) -> tuple[int, ...]:
    times = (record.start_timestamp, record.end_timestamp)
    return (record.thread_id, record.kind, record.operation, *times, record.correlation_id.internal)


def _handle(agent: dict[str, Any]) -> int:
    found = agent.get("id")
    return found["handle"] if isinstance(found, dict) and isinstance(found.get("handle"), int) else -1


def _machine(processes: list[_Process]) -> dict[str, str]:
    gpus = [agent for process in processes for agent in process.agents if _handle(agent) in process.used]
    names = (str(agent.get("product_name") or agent.get("name") or "") for agent in gpus)
    named = ", ".join(dict.fromkeys(name for name in names if name))
    return {"profiler": "rocprofv3", **({"gpu": named} if named else {})}
