"""Two runs side by side: first whether the fusion fired, then what changed and what stayed as a control.

Launches compare exactly. A boundary's rows and the same kernel elsewhere are two populations; rows add up to totals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.between import Untraced, next_step, untraced
from fusionscope.analysis.changes import Change, Fired, changes_of, claims_of, fired_of, suspects
from fusionscope.analysis.differing import differing, doubts, incomparable
from fusionscope.analysis.forwards import most_like
from fusionscope.analysis.paired_rows import Row, paired_rows
from fusionscope.analysis.verdict import MARGIN, Verdict


@dataclass(frozen=True)
class Comparison:
    """Everything that `compare` and `summary` say."""

    base: Analysed
    candidate: Analysed
    changes: list[Change]
    fired: Fired | None
    #: What the candidate fused: the widest change first, then those with sites outside it, and how many those are.
    claims: list[tuple[Change, int]]
    rows: list[Row]
    same_sequence: bool
    #: Unknown kernels that appear as often as sites vanished.
    suspects: list[tuple[str, int, str]]
    differs: dict[str, tuple[str, str]]
    #: Fields that forbid a comparison of times, and those that make one doubtful: before and after.
    incomparable: dict[str, tuple[str, str]]
    doubts: dict[str, tuple[str, str]]
    measured: Verdict | None
    measured_saving_ns: float | None
    measured_interval_ns: tuple[float, float] | None
    mde_ns: float | None
    #: The part of the step that a saving must exceed.
    margin: float = MARGIN
    #: The untraced steps that the measured saving is of, and full sentences on how they were taken.
    steps_ns: tuple[float, float] | None = None
    how: str = ""
    source: str = "untraced"
    #: Captures of each arm that the measured saving stands on; None without one, or where every turn was a process.
    captures: tuple[int, int] | None = None
    #: What its interval allows for two captures of one program, ns; 0 where several captures tell.
    between_ns: float = 0.0

    @property
    def step_ns(self) -> float:
        """The base's step that savings are parts of: measured beside the candidate's where it was, else its own."""
        return self.steps_ns[0] if self.steps_ns else self.base.step_ns()


def compare(
    base: Analysed,
    candidate: Analysed,
    margin: float = MARGIN,
    again: tuple[Sequence[Analysed], Sequence[Analysed]] = ((), ()),
) -> Comparison:
    """Compare two analysed runs (base first).

    `again` are further captures of either, whose untraced times count as much; everything else is of the first ones.
    """
    candidate = _paired(base, candidate)
    changes = [change for kind in base.attribution.sites for change in changes_of(base, candidate, kind)]
    same = list(base.forward.nodes["name"].astype(str)) == list(candidate.forward.nodes["name"].astype(str))
    claims = [] if same else claims_of(base, changes)
    fired = fired_of(base, candidate, claims[0][0]) if claims else None
    subject = f"fusing {claims[0][0].name} at {claims[0][0].fired_sites} sites" if len(claims) == 1 else ""
    forbidden = incomparable(base, candidate)
    # Times of other work, or of another machine, have no difference that would mean anything.
    times = None if forbidden else _times([base, *again[0]], [candidate, *again[1]], margin, subject)
    return Comparison(
        base=base,
        candidate=candidate,
        changes=changes,
        fired=fired,
        claims=claims,
        rows=paired_rows(base, candidate, [change for change, _ in claims]),
        same_sequence=same,
        suspects=suspects(base, candidate, changes),
        differs=differing(base, candidate),
        incomparable=forbidden,
        doubts=doubts(base, candidate),
        measured=times.verdict if times else None,
        measured_saving_ns=times.saving_ns if times else None,
        measured_interval_ns=times.interval_ns if times else None,
        mde_ns=times.mde_ns if times else None,
        margin=margin,
        steps_ns=times.steps_ns if times else None,
        how=times.how if times else "",
        source=base.untraced.source if base.untraced is not None else "untraced",
        captures=times.captures if times else None,
        between_ns=times.between_ns if times else 0.0,
    )


def _paired(base: Analysed, candidate: Analysed) -> Analysed:
    """The candidate's forward that is most like the base's, by how many kernel names they share."""
    if len(candidate.forwards) < 2:
        return candidate
    best = most_like(candidate.forwards, base.forward)
    if best.kind == candidate.forward.kind:
        return candidate
    return candidate.of(best)


def _times(base: list[Analysed], candidate: list[Analysed], margin: float, subject: str) -> Untraced | None:
    """What the untraced times of all captures of both arms say; None where one has none, or of another kind."""
    before, after = ([one.untraced for one in side if one.untraced is not None] for side in (base, candidate))
    if len(before) < len(base) or len(after) < len(candidate) or len({one.source for one in (*before, *after)}) > 1:
        return None
    together = one_process(base[0], candidate[0])
    return untraced(before, after, together, margin, subject, next_step(base[0].info, candidate[0].info))


def one_process(base: Analysed, candidate: Analysed) -> bool:
    """Whether both sides' times came from one file, interleaved (two arms of the same measurement)."""
    return bool(
        {i.sha256 for i in base.info.inputs if i.path.endswith(".json")}
        & {i.sha256 for i in candidate.info.inputs if i.path.endswith(".json")}
    )
