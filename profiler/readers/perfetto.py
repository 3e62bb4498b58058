"""Perfetto traces with GPU work: rocprofv3's .pftrace, torch.profiler's categories in Perfetto, GPU render stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from fusionscope.profiler.errors import UnreadableTrace
from fusionscope.profiler.readers import packed
from fusionscope.profiler.readers.assemble import CALLS, RANGES, Found, assemble
from fusionscope.profiler.readers.perfetto_packets import Packets, text
from fusionscope.profiler.readers.rows import Numbers, Texts
from fusionscope.profiler.trace import Trace

_KINDS = ("kernel", "memcpy", "memset")
#: Categories of rocprofv3 and of torch.profiler.
_GPU = {
    "kernel_dispatch": "kernel",
    "kernel": "kernel",
    "memory_copy": "memcpy",
    "gpu_memcpy": "memcpy",
    "gpu_memset": "memset",
}
_CALLS = {"hip_api", "hip_runtime_api", "rccl_api", "cuda_runtime", "cuda_driver"}
_RANGES = {"marker_api", "user_annotation"}
_BEGIN, _END = 1, 2
_ADVICE = "record again with `rocprofv3 --output-format csv` or `rocpd`, and a larger --perfetto-buffer-size"
#: None is what is no number.
_Notes = dict[str, int | None]
_TEXTS = ("string_value", "legacy_json_value")
#: Names of the annotations that are needed, the first that is there counts.
_CORRELATION = ("corr_id", "correlation", "correlation_id")
_BEGAN, _ENDED, _THREAD = ("begin_ns",), ("end_ns",), ("tid",)
_DEVICE, _STREAM = ("agent", "device", "device_id"), ("stream_ID", "stream_id", "stream", "queue")
_NODE, _GRAPH = ("graph node id", "graph_node_id"), ("graph id", "graph_exec_id")
_WANTED = frozenset((*_CORRELATION, *_BEGAN, *_ENDED, *_THREAD, *_DEVICE, *_STREAM, *_NODE, *_GRAPH))


def read(path: str | Path) -> Trace:
    """The tables of one trace, packed or not. Raises UnreadableTrace with the byte at which it breaks.

    rocprofv3 moves the ends of kernels that overlap on one queue before it writes them, so a warning says that the
    durations are adjusted.
    """
    path = Path(path)
    reading = _Reading()
    try:
        with packed.opened(path) as file:
            packets = Packets(file, path)
            for packet, data, writer, time in packets:
                reading.add(packet, data, writer, time)
    except packed.DAMAGE as error:
        raise packed.damaged(path, packed.head(path)[0], error) from error
    return assemble(reading.found(path, packets))


class _Reading:
    """What has been read so far of one file."""

    def __init__(self) -> None:
        self.device = Numbers(
            "track", "pid", "device", "stream", "kind", "text", "start_ns", "end_ns", "correlation", "graph", "node"
        )
        self.host = Numbers("track", "pid", "thread", "sort", "text", "start_ns", "end_ns", "correlation")
        self.texts = Texts()
        #: Uuids of tracks are unsigned and random: rows hold their number here.
        self._tracks: dict[int, int] = {}
        self._open: dict[int, list[tuple[str, str, int, _Notes]]] = {}
        self._parents: dict[int, int] = {}
        self._processes: dict[int, int] = {}
        self._threads: dict[int, int] = {}
        self.categories: dict[str, int] = {}
        self.adjusted = 0
        self.unmatched = 0

    def add(self, packet: Any, data: str | None, writer: Any, time: int) -> None:
        if data == "track_event":
            self._event(packet, packet.track_event, writer, time)
        elif data == "track_descriptor":
            self._track(packet.track_descriptor)
        elif data == "gpu_render_stage_event":
            self._stage(packet.gpu_render_stage_event, writer, time, _pid(packet))

    def _track(self, track: Any) -> None:
        self._parents[track.uuid] = track.parent_uuid
        if track.HasField("process"):
            self._processes[track.uuid] = track.process.pid
        if track.HasField("thread"):
            self._processes[track.uuid] = track.thread.pid
            self._threads[track.uuid] = track.thread.tid

    def _event(self, packet: Any, event: Any, writer: Any, time: int) -> None:
        track, kind = event.track_uuid or writer.track, event.type
        if kind == _BEGIN:
            known = writer.interned["event_categories"]
            category = next((known.get(i, "") for i in event.category_iids), "") or _first(event)
            self._open.setdefault(track, []).append((category, _named(event, writer), time, _notes(event, writer)))
        elif kind == _END:
            if not (stack := self._open.get(track)):
                self.unmatched += 1
                return
            category, name, start, notes = stack.pop()
            notes.update(_notes(event, writer))
            self._slice(track, _pid(packet), category.lower(), name, start, time, notes)

    def _slice(self, track: int, pid: int, category: str, name: str, start: int, end: int, notes: _Notes) -> None:
        self.categories[category] = self.categories.get(category, 0) + 1
        track = self._tracks.setdefault(track, len(self._tracks))
        code, correlation = self.texts.code(name), _number(notes, _CORRELATION)
        if category in _GPU:
            # The annotations are the profiler's own stamps; the slice's may have gone through another clock.
            first, last = _number(notes, _BEGAN), _number(notes, _ENDED)
            if 0 <= first <= last and last > 0:
                start, end = first, last
            self.adjusted += "begin_ns" in notes
            device, stream = _number(notes, _DEVICE), _number(notes, _STREAM)
            node, graph = _number(notes, _NODE), _number(notes, _GRAPH)
            if node >= 1 << 32:
                graph, node = node >> 32, node & 0xFFFFFFFF
            graph, node = (graph, node) if graph > 0 else (-1, -1)
            kind = _KINDS.index(_GPU[category])
            self.device.add(track, pid, device, stream, kind, code, start, end, correlation, graph, node)
        elif category in _CALLS or category in _RANGES:
            self.host.add(track, pid, _number(notes, _THREAD), int(category in _RANGES), code, start, end, correlation)

    def _stage(self, event: Any, writer: Any, time: int, pid: int) -> None:
        named = _named(event, writer) or writer.interned["kernel_symbols"].get(event.kernel_iid, "")
        name = named or writer.stages.get(event.stage_iid, "")
        queue = int(event.hw_queue_iid or event.hw_queue_id)
        code, end = self.texts.code(name), time + event.duration
        track = self._tracks.setdefault(0, len(self._tracks))
        self.device.add(track, pid, event.gpu_id, queue, 0, code, time, end, event.submission_id or -1, -1, -1)
        self.categories["gpu render stage"] = self.categories.get("gpu render stage", 0) + 1

    def found(self, path: Path, packets: Packets) -> Found:
        device, host = self.device.frame(), self.host.frame()
        if not len(device):
            raise UnreadableTrace(_nothing(path, self.categories))
        kinds = pd.Series(list(_KINDS), dtype="object")
        rows = device.assign(kind=kinds.reindex(device["kind"]).to_numpy(), name=self.texts.column(device["text"]))
        rows["process"] = self._process_of(device)
        host = host.assign(name=self.texts.column(host["text"]), process=self._process_of(host))
        on_thread = {number: self._threads.get(uuid, -1) for uuid, number in self._tracks.items()}
        threads = host["track"].map(on_thread).fillna(-1).astype("int64")
        host["thread"] = host["thread"].where(host["thread"] >= 0, threads)
        marks = host["sort"] == 1
        open_slices = sum(map(len, self._open.values()))
        return Found(
            path,
            rows.drop(columns=["track", "pid", "text"]),
            host.loc[~marks, list(CALLS)],
            host.loc[marks, list(RANGES)],
            {"profiler": "rocprofv3 (Perfetto)" if self.adjusted else "Perfetto"},
            _doubts(self.adjusted, packets, open_slices + self.unmatched),
            _ADVICE,
        )

    def _process_of(self, rows: pd.DataFrame) -> pd.Series:
        """The process of the track or of one of those above it, else the writer's."""
        told: dict[int, int] = {}
        for uuid, number in self._tracks.items():
            at, seen = uuid, set[int]()
            while at and at not in self._processes and at not in seen:
                seen.add(at)
                at = self._parents.get(at, 0)
            told[number] = self._processes.get(at, -1)
        found = rows["track"].map(told).fillna(-1).astype("int64")
        return found.where(found >= 0, rows["pid"])


def _pid(packet: Any) -> int:
    return packet.trusted_pid if packet.HasField("trusted_pid") else -1


def _named(event: Any, writer: Any) -> str:
    """An event's name: it holds the name's number or the name itself."""
    known = writer.interned["event_names"]
    return known.get(number, "") if (number := event.name_iid) else text(event, "name") or known.get(0, "")


def _notes(event: Any, writer: Any) -> _Notes:
    """The debug annotations that are needed, by name."""
    found: _Notes = {}
    names = writer.interned["debug_annotation_names"]
    for note in event.debug_annotations:
        number = note.name_iid
        name = names.get(number, "") if number else text(note, "name") or names.get(0, "")
        if name not in _WANTED or (field := note.WhichOneof("value")) is None:
            continue
        value = text(note, field) if field in _TEXTS else getattr(note, field)
        if field == "string_value_iid":
            value = writer.interned["debug_annotation_string_values"].get(value)
        found[name] = _whole(value)
    return found


def _first(event: Any) -> str:
    """The first category that an event spells out."""
    try:
        found = next(iter(event.categories), "")
    except UnicodeDecodeError:
        return ""
    return found if isinstance(found, str) else ""


def _whole(value: Any) -> int | None:
    """A value as a whole number, None where it is none or no profiler's."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value.strip()[:18])
    return value if type(value) is int and abs(value) < 2**62 else None


def _number(notes: _Notes, names: tuple[str, ...]) -> int:
    """The first of these notes that is a number, -1 where none is."""
    for name in names:
        if (value := notes.get(name)) is not None:
            return value
    return -1


def _doubts(adjusted: int, packets: Packets, unfinished: int) -> list[str]:
    found = []
    if adjusted:
        found.append(
            "rocprofv3 adjusts the times of kernels that overlap on one queue before it writes Perfetto, so durations "
            "are less trusted here: import its CSV, JSON or database instead where you have it."
        )
    if packets.lost:
        found.append(f"{packets.lost} packets were lost while recording, the end may be missing: {_ADVICE}.")
    if packets.unknown:
        found.append(f"{packets.unknown} events came before their names and have none: the start of the trace is lost.")
    if unfinished:
        found.append(f"{unfinished} slices have no begin or no end and were left out: the recording was cut.")
    return found


def _nothing(path: Path, categories: dict[str, int]) -> str:
    seen = ", ".join(sorted(categories, key=lambda name: -categories[name])[:5]) or "none"
    return (
        f"{path} is a Perfetto trace without GPU work (categories with slices: {seen}): record kernels, with "
        "`rocprofv3 --kernel-trace --output-format pftrace`, or torch.profiler with ProfilerActivity.CUDA."
    )
