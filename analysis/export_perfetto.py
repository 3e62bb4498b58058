"""Tracks as a Perfetto trace (ui.perfetto.dev), written with the perfetto package's own classes."""

from __future__ import annotations

from typing import Any

from fusionscope.analysis.tracks import Facts, RankTracks, Slice

#: All packets are of one writer.
SEQUENCE = 1


def perfetto(ranks: list[RankTracks]) -> bytes:
    """The bytes of a .pftrace: a process a rank, a track a stream, boundary or gaps, facts as debug annotations."""
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackDescriptor, TrackEvent
    from perfetto.trace_builder.proto_builder import TraceProtoBuilder

    builder = TraceProtoBuilder()
    ids = iter(range(1, 1 << 62))
    first = True
    for rank in ranks:
        process = next(ids)
        descriptor = _descriptor(builder, process, "", first)
        first = False
        descriptor.process.pid = rank.rank + 1
        descriptor.process.process_name = f"rank {rank.rank}: {rank.title}"
        descriptor.child_ordering = TrackDescriptor.ChildTracksOrdering.EXPLICIT
        for order, track in enumerate(rank.tracks):
            uuid = next(ids)
            descriptor = _descriptor(builder, uuid, track.name, False)
            descriptor.parent_uuid, descriptor.sibling_order_rank = process, order
            for one in track.slices:
                _slice(builder, uuid, track.kind, one, TrackEvent)
    data: bytes = builder.serialize()
    return data


def _descriptor(builder: Any, uuid: int, name: str, first: bool) -> Any:
    packet = builder.add_packet()
    packet.trusted_packet_sequence_id = SEQUENCE
    if first:
        packet.sequence_flags = 1  # SEQ_INCREMENTAL_STATE_CLEARED: nothing was said before
    packet.track_descriptor.uuid = uuid
    if name:
        packet.track_descriptor.name = name
    return packet.track_descriptor


def _slice(builder: Any, track: int, kind: str, one: Slice, events: Any) -> None:
    for at, type_ in ((one.start_ns, events.TYPE_SLICE_BEGIN), (one.end_ns, events.TYPE_SLICE_END)):
        packet = builder.add_packet()
        packet.trusted_packet_sequence_id = SEQUENCE
        packet.timestamp = at
        packet.track_event.type = type_
        packet.track_event.track_uuid = track
        if type_ == events.TYPE_SLICE_BEGIN:
            packet.track_event.name = one.name
            packet.track_event.categories.append(kind)
            _annotate(packet.track_event, one.facts)


def _annotate(event: Any, facts: Facts) -> None:
    for name, value in facts.items():
        if value in ("", -1):
            continue
        note = event.debug_annotations.add()
        note.name = name
        if isinstance(value, int):
            note.int_value = value
        else:
            note.string_value = value
