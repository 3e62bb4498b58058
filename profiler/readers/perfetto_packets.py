"""The packets of a Perfetto trace, one at a time, with what they only refer to filled in.

Names, categories and clocks stand once per writer and are referred to by number after that: see Perfetto's
documentation of interned data and of clock synchronisation.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from fusionscope.profiler.errors import UnreadableTrace

_PACKET = 0x0A
#: No packet of a profiler is this long.
_LONGEST = 64 << 20
_UNPACKED = 256 << 20
_CHUNK = 1 << 20
#: Bytes of a tag and of the longest number.
_LONGEST_SIZE = 11
#: So much of a file is looked at to tell what it is.
_HEAD = 4096
_CLEARED = 1
_NEEDS_STATE = 2
_SEQUENCE_CLOCKS = range(64, 128)
_BOOT = 6


@cache
def _packet_class() -> Any:
    # The generated classes take a third of a second: only who reads such a trace pays.
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    return perfetto_trace_pb2.TracePacket


@cache
def _trace_class() -> Any:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2

    return perfetto_trace_pb2.Trace


@cache
def _no_message() -> type[Exception]:
    from google.protobuf.message import DecodeError

    return DecodeError  # type: ignore[no-any-return, unused-ignore]


def parse(body: bytes) -> Any | None:
    """One packet, None where the bytes are none."""
    try:
        return _packet_class().FromString(body)
    except _no_message():
        return None


def is_perfetto(head: bytes) -> bool:
    """Whether the first bytes of a file are packets of a Perfetto trace."""
    at, packets = 0, 0
    while at < len(head):
        size, start = _varint(head, at + 1)
        if head[at] != _PACKET or not 0 <= size <= _LONGEST:
            return False
        if start + size > len(head):
            # A first packet longer than what is at hand must at least begin with a field of a packet.
            return packets > 0 or (len(head) >= _HEAD and head[start] & 7 in (0, 1, 2, 5))
        packet = parse(head[start : start + size])
        if packet is None or not packet.ListFields():
            return False
        at, packets = start + size, packets + 1
    return packets > 0


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, place after it); -1 where it does not end."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        value |= (data[at] & 0x7F) << shift
        at += 1
        if not data[at - 1] & 0x80:
            return value, at
    return -1, at


#: Kinds of interned data whose texts are needed; the second ones are bytes.
_NAMED = ("event_names", "event_categories", "debug_annotation_names")
_SPELT = ("debug_annotation_string_values", "kernel_symbols")


@dataclass
class _Writer:
    """What one sequence of packets has said so far."""

    interned: dict[str, dict[int, str]] = field(default_factory=lambda: {kind: {} for kind in (*_NAMED, *_SPELT)})
    stages: dict[int, str] = field(default_factory=dict)
    clock: int = 0
    track: int = 0
    #: By clock: ns in a unit, whether stamps add up, the last stamp, and what boot time less that clock was, ns.
    clocks: dict[int, tuple[int, bool, int, int]] = field(default_factory=dict)
    ready: bool = False


class Packets:
    """The packets of one file; `lost` counts what the writers say is missing, `unknown` the events without a name."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._at = 0
        self._writers: dict[int, _Writer] = {}
        self.lost = 0
        self.unknown = 0

    def broken(self, what: str) -> UnreadableTrace:
        return UnreadableTrace(
            f"{self._path} {what} (at byte {self._at}): the recording was cut, copy or record the trace again."
        )

    def __iter__(self) -> Iterator[tuple[Any, str | None, _Writer, int]]:
        """(packet, which data it has, its writer, its time in ns or -1)."""
        for body in self._bodies():
            packet = parse(body)
            if packet is None:
                raise self.broken("has a packet that is none")
            yield from self._opened(packet)

    def _bodies(self) -> Iterator[bytes]:
        held, at = b"", 0
        while True:
            if at == len(held):
                held, at = self._file.read(_CHUNK), 0
            if not held:
                return
            if held[at] != _PACKET:
                raise self.broken(f"has {held[at : at + 1]!r} where a packet begins")
            size, start = _varint(held, at + 1)
            if size < 0 and len(held) - at > _LONGEST_SIZE:
                raise self.broken("has a length that does not end")
            if size > _LONGEST:
                raise self.broken(f"has a packet of {size} bytes")
            lacking = 1 if size < 0 else start + size - len(held)
            if lacking > 0:
                held, at = held[at:] + self._more(lacking), 0
                continue
            yield held[start : start + size]
            self._at += start + size - at
            at = start + size

    def _more(self, size: int) -> bytes:
        """At least so many bytes more."""
        found: list[bytes] = []
        while size > 0:
            piece = self._file.read(max(size, _CHUNK))
            if not piece:
                raise self.broken("ends in the middle of a packet")
            found.append(piece)
            size -= len(piece)
        return b"".join(found)

    def _opened(self, packet: Any) -> Iterator[tuple[Any, str | None, _Writer, int]]:
        if not packet.HasField("compressed_packets"):
            yield self._filled(packet)
            return
        unpacker = zlib.decompressobj()
        try:
            content = unpacker.decompress(packet.compressed_packets, _UNPACKED)
            inner = _trace_class().FromString(content)
        except (zlib.error, _no_message()) as error:
            raise self.broken(f"has packed packets that cannot be unpacked ({error})") from error
        if unpacker.unconsumed_tail:
            raise self.broken("has packed packets of more than 256 MiB")
        for one in inner.packet:
            yield self._filled(one)

    def _filled(self, packet: Any) -> tuple[Any, str | None, _Writer, int]:
        # Every question to a packet costs, and most packets are events: what they have is asked once.
        number, flags, data = packet.trusted_packet_sequence_id, packet.sequence_flags, packet.WhichOneof("data")
        writer = self._writers.get(number)
        if writer is None or packet.incremental_state_cleared or flags & _CLEARED:
            cleared = packet.incremental_state_cleared or flags & _CLEARED
            writer = self._writers[number] = _Writer(ready=bool(cleared))
        if packet.HasField("trace_packet_defaults"):
            defaults = packet.trace_packet_defaults
            writer.clock = defaults.timestamp_clock_id or writer.clock
            writer.track = defaults.track_event_defaults.track_uuid or writer.track
        if packet.HasField("interned_data"):
            _intern(packet.interned_data, writer)
        if data == "clock_snapshot":
            _set_clocks(packet.clock_snapshot, writer)
        if packet.previous_packet_dropped and writer.ready and not packet.first_packet_on_sequence:
            self.lost += 1
        if data == "trace_stats":
            self.lost += sum(
                stats.trace_writer_packet_loss + stats.chunks_discarded + stats.chunks_overwritten
                for stats in packet.trace_stats.buffer_stats
            )
        if flags & _NEEDS_STATE and not writer.ready:
            self.unknown += 1
        return packet, data, writer, _time(packet, writer)


def text(message: Any, name: str) -> str:
    """A text of a message; broken UTF-8, which some writers leave, is made readable."""
    try:
        value = getattr(message, name)
    except UnicodeDecodeError as error:
        value = error.object
    # Protobuf's parsers differ in what they make of such bytes: an error, or the bytes.
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)


def _intern(data: Any, writer: _Writer) -> None:
    for kind in _NAMED:
        writer.interned[kind].update({entry.iid: text(entry, "name") for entry in getattr(data, kind)})
    for kind in _SPELT:
        writer.interned[kind].update(
            {entry.iid: entry.str.decode(errors="replace") for entry in getattr(data, kind, ())}
        )
    writer.stages.update({entry.iid: text(entry, "name") for entry in data.gpu_specifications})


def _set_clocks(snapshot: Any, writer: _Writer) -> None:
    """A writer's own clocks (64 to 127) begin at a stamp and are tied to boot time by the same snapshot."""
    boot = next((clock.timestamp for clock in snapshot.clocks if clock.clock_id == _BOOT), None)
    for clock in snapshot.clocks:
        if clock.clock_id in _SEQUENCE_CLOCKS:
            unit = clock.unit_multiplier_ns or 1
            offset = 0 if boot is None else boot - clock.timestamp * unit
            writer.clocks[clock.clock_id] = (unit, clock.is_incremental, clock.timestamp, offset)


def _time(packet: Any, writer: _Writer) -> int:
    if not packet.HasField("timestamp"):
        return -1
    number = packet.timestamp_clock_id or writer.clock
    if number not in writer.clocks:
        return int(packet.timestamp)
    unit, incremental, last, offset = writer.clocks[number]
    stamp = last + packet.timestamp if incremental else packet.timestamp
    writer.clocks[number] = (unit, incremental, stamp, offset)
    return int(stamp * unit + offset)
