"""A run as tracks of slices, for viewers of traces: launches by stream, sites by boundary, gaps.

Slices of one track never overlap: what runs at the same time on one stream gets a lane of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.names import short
from fusionscope.analysis.timeline import Timeline, gaps, timeline

#: What viewers show of a slice, beside its name and times.
Facts = dict[str, str | int]


@dataclass(frozen=True)
class Slice:
    """One stretch of time, ns since the first launch of the rank."""

    name: str
    start_ns: int
    duration_ns: int
    facts: Facts

    @property
    def end_ns(self) -> int:
        """Where it ends."""
        return self.start_ns + self.duration_ns


@dataclass
class Track:
    """Slices in order of their start, none of which overlaps another."""

    name: str
    #: "launches", "boundary" or "gaps".
    kind: str
    slices: list[Slice] = field(default_factory=list)


@dataclass(frozen=True)
class RankTracks:
    """All tracks of one rank."""

    rank: int
    title: str
    tracks: list[Track]


def rank_tracks(run: Analysed) -> RankTracks:
    """Every execution of the run's forward on its rank."""
    forward = run.forward
    first = int(forward.start.min())
    names = [short(name) for name in forward.nodes["name"].astype(str)]
    by_track: dict[tuple[str, str], list[Slice]] = {}
    for replay in range(forward.start.shape[0]):
        shown = timeline(run.attribution, replay)
        offset = int(forward.start[replay].min()) - first
        _launches(by_track, shown, offset, run, names)
        _sites(by_track, shown, offset, run)
        by_track.setdefault(("gaps", "gaps"), []).extend(
            Slice("gap", offset + gap.start_ns, gap.length_ns,
                  {"replay": replay, "after": names[gap.after], "before": names[gap.before]})
            for gap in gaps(shown)
        )  # fmt: skip
    tracks = [track for (kind, name), slices in by_track.items() for track in _lanes(kind, name, slices)]
    order = {"boundary": 0, "launches": 1, "gaps": 2}
    return RankTracks(forward.rank, run.title, sorted(tracks, key=lambda track: (order[track.kind], track.name)))


def _launches(
    by_track: dict[tuple[str, str], list[Slice]], shown: Timeline, offset: int, run: Analysed, short_names: list[str]
) -> None:
    nodes = run.forward.nodes["node"].tolist()
    for column, name in enumerate(shown.names):
        facts: Facts = {"kernel": name, "role": run.attribution.roles[column] or "unknown", "replay": shown.replay}
        if nodes[column] >= 0:
            facts["node"] = int(nodes[column])
        if shown.sites[column]:
            site = shown.sites[column][-1]
            facts |= {"boundary": site.boundary, "subtype": site.subtype, "site": site.site, "layer": site.layer}
        start, duration = offset + int(shown.start[column]), int(shown.duration[column])
        by_track.setdefault(("launches", shown.lanes[column]), []).append(
            Slice(short_names[column], start, duration, facts)
        )


def _sites(by_track: dict[tuple[str, str], list[Slice]], shown: Timeline, offset: int, run: Analysed) -> None:
    for kind, sites in run.attribution.sites.items():
        for site in sites:
            start, end = shown.window(site)
            facts: Facts = {
                "site": site.site, "subtype": site.subtype, "layer": site.layer, "launches": len(site.columns),
                "path": site.path, "declined": site.declined, "form": site.form, "rung": site.rung,
                "replay": shown.replay,
            }  # fmt: skip
            name = f"{kind}:{site.subtype}" if site.subtype else kind
            by_track.setdefault(("boundary", kind), []).append(Slice(name, offset + start, end - start, facts))


def _lanes(kind: str, name: str, slices: list[Slice]) -> list[Track]:
    """One track, and further ones for what would overlap on it."""
    lanes: list[Track] = []
    for one in sorted(slices, key=lambda s: (s.start_ns, s.end_ns)):
        free = next((lane for lane in lanes if not lane.slices or lane.slices[-1].end_ns <= one.start_ns), None)
        if free is None:
            free = Track(name if not lanes else f"{name} ({len(lanes) + 1})", kind)
            lanes.append(free)
        free.slices.append(one)
    return lanes
