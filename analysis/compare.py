"""Two runs side by side: first whether the fusion fired, then what changed and what stayed as a control.

Launches compare exactly. A boundary's rows and the same kernel elsewhere are two populations; rows add up to totals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.changes import Change, Fired, changes_of, claims_of, fired_of, suspects
from fusionscope.analysis.differing import differing, doubts, incomparable
from fusionscope.analysis.forwards import most_like
from fusionscope.analysis.paired_rows import Row, paired_rows
from fusionscope.analysis.verdict import MARGIN, Verdict, judge

#: A difference of two processes is one sample of how much processes differ.
TWO_PROCESSES = "Both sides ran in processes of their own, and processes differ: this is one sample of that."


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

    @property
    def step_ns(self) -> float:
        """The base's step that savings are parts of: measured beside the candidate's where it was, else its own."""
        return self.steps_ns[0] if self.steps_ns else self.base.step_ns()


def compare(base: Analysed, candidate: Analysed, margin: float = MARGIN) -> Comparison:
    """Compare two analysed runs (base first)."""
    candidate = _paired(base, candidate)
    changes = [change for kind in base.attribution.sites for change in changes_of(base, candidate, kind)]
    same = list(base.forward.nodes["name"].astype(str)) == list(candidate.forward.nodes["name"].astype(str))
    claims = [] if same else claims_of(base, changes)
    fired = fired_of(base, candidate, claims[0][0]) if claims else None
    subject = f"fusing {claims[0][0].name} at {claims[0][0].fired_sites} sites" if len(claims) == 1 else ""
    forbidden = incomparable(base, candidate)
    # Times of other work, or of another machine, have no difference that would mean anything.
    measured = (None, None, None, None) if forbidden else _measured(base, candidate, margin, subject)
    verdict, saving, interval, mde = measured
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
        measured=verdict,
        measured_saving_ns=saving,
        measured_interval_ns=interval,
        mde_ns=mde,
        margin=margin,
        steps_ns=_steps(base, candidate) if verdict is not None else None,
        how=_how(base, candidate) if verdict is not None else "",
        source=base.untraced.source if base.untraced is not None else "untraced",
    )


def _steps(base: Analysed, candidate: Analysed) -> tuple[float, float]:
    return base.step_ns(), candidate.step_ns()


def _how(base: Analysed, candidate: Analysed) -> str:
    """In how many processes and blocks both sides were timed."""
    sides = [side.untraced for side in (base, candidate) if side.untraced is not None]
    counts = dict.fromkeys(samples(side.processes, side.blocks) for side in sides)
    alone = "" if one_process(base, candidate) else f" {TWO_PROCESSES}"
    return f"{' and '.join(counts)} an arm.{alone}"


def samples(processes: int, blocks: int, kind: str = "blocks") -> str:
    """`3 processes x 20 blocks`."""
    each = blocks // processes if processes and blocks % processes == 0 else 0
    unit = "process" if processes == 1 else "processes"
    return f"{processes} {unit} x {each} {kind}" if each else f"{processes} {unit}, {blocks} {kind}"


def _paired(base: Analysed, candidate: Analysed) -> Analysed:
    """The candidate's forward that is most like the base's, by how many kernel names they share."""
    if len(candidate.forwards) < 2:
        return candidate
    best = most_like(candidate.forwards, base.forward)
    if best.kind == candidate.forward.kind:
        return candidate
    return candidate.of(best)


def _measured(
    base: Analysed, candidate: Analysed, margin: float, subject: str
) -> tuple[Verdict | None, float | None, tuple[float, float] | None, float | None]:
    """The verdict on untraced times, where both runs have them; a difference of two processes is one sample."""
    if base.untraced is None or candidate.untraced is None or base.untraced.source != candidate.untraced.source:
        return None, None, None, None
    saving = base.untraced.median_ns - candidate.untraced.median_ns
    errors = [
        np.hypot(side.interval_ns[0] - side.median_ns, side.interval_ns[1] - side.median_ns) / np.sqrt(2)
        for side in (base.untraced, candidate.untraced)
    ]
    half = float(np.hypot(*errors))
    interval = (saving - half, saving + half)
    floors = [side.mde_ns for side in (base.untraced, candidate.untraced)]
    mde = None if None in floors else max(f for f in floors if f is not None)
    if np.isnan(half):
        interval, mde = (-abs(saving), 3 * abs(saving)), None
    verdict = judge(
        saving, interval, base.untraced.median_ns, mde, kind="measured", margin=margin,
        missing="More untraced replays of both runs would settle it.",
        caution="" if one_process(base, candidate) else TWO_PROCESSES, subject=subject,
    )  # fmt: skip
    return verdict, saving, interval, mde


def one_process(base: Analysed, candidate: Analysed) -> bool:
    """Whether both sides' times came from one file, interleaved (two arms of the same measurement)."""
    return bool(
        {i.sha256 for i in base.info.inputs if i.path.endswith(".json")}
        & {i.sha256 for i in candidate.info.inputs if i.path.endswith(".json")}
    )
