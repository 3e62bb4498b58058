"""Untraced times of runs: one capture of each arm is an observation, several are a measurement."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from fusionscope.analysis import ab
from fusionscope.analysis.noise import CONFIDENCE, Baseline
from fusionscope.analysis.observed import alone, observe
from fusionscope.analysis.shifts import CAPTURES, Shift
from fusionscope.analysis.verdict import Verdict
from fusionscope.profiler.runinfo import RunInfo


@dataclass(frozen=True)
class Untraced:
    """The difference of two programs' untraced steps, ns; a saving is positive where the candidate is faster."""

    verdict: Verdict
    saving_ns: float
    interval_ns: tuple[float, float]
    mde_ns: float | None
    steps_ns: tuple[float, float]
    #: Captures of the base and of the candidate.
    captures: tuple[int, int]
    #: What the interval allows for two captures of one program, ns; 0 where several captures tell.
    between_ns: float
    #: Full sentences on how the times were taken.
    how: str


def untraced(
    base: Sequence[Baseline], candidate: Sequence[Baseline], together: bool, margin: float, subject: str, next_step: str
) -> Untraced:
    """Judge the untraced times of some runs of each arm, each run with a capture in each of its processes.

    `together`: both arms ran in the same processes. `next_step` says what would measure.
    """
    captures = _count(base), _count(candidate)
    if min(captures) > 1:
        return _measured(base, candidate, captures, together, margin, subject)
    steps = _middle(base), _middle(candidate)
    saving = steps[0] - steps[1]
    floors = [one.mde_ns for one in (*base, *candidate)]
    mde = None if None in floors else max(f for f in floors if f is not None)
    half = float(np.hypot(_half(base), _half(candidate)))
    interval = (saving - half, saving + half)
    if np.isnan(half):
        # One block shows nothing of what blocks differ by: the class stays open.
        interval, mde = (saving - 2 * abs(saving), saving + 2 * abs(saving)), None
    seen = observe(
        saving, interval, steps[0], mde, together=together, margin=margin, subject=subject, next_step=next_step,
        of=alone(captures),
    )  # fmt: skip
    counts = dict.fromkeys(samples(one.processes, one.blocks) for one in (*base, *candidate))
    how = f"{' and '.join(counts)} an arm."
    return Untraced(seen.verdict, saving, seen.interval_ns, mde, steps, captures, seen.between_ns, how)


def _measured(
    base: Sequence[Baseline], candidate: Sequence[Baseline], captures: tuple[int, int], together: bool, margin: float,
    subject: str,
) -> Untraced:  # fmt: skip
    """Several captures of each arm: what they differ by is the error."""
    sides = [np.array([ns for one in side for ns in one.by_process.values()]) for side in (base, candidate)]
    steps = float(sides[0].mean()), float(sides[1].mean())
    parts = [float(np.var(side, ddof=1)) / len(side) for side in sides]
    variance, freedom = sum(parts), sum(captures) - 2.0
    if variance:
        # Welch's degrees of freedom.
        freedom = variance**2 / sum(part**2 / (len(s) - 1) for part, s in zip(parts, sides, strict=True))
    if together and len(base) == len(candidate) == 1 and base[0].by_process.keys() == candidate[0].by_process.keys():
        # The arms of a process share what processes differ by.
        apart = np.array([base[0].by_process[p] - candidate[0].by_process[p] for p in base[0].by_process])
        variance, freedom = float(np.var(apart, ddof=1)) / len(apart), len(apart) - 1.0
    inside = np.hypot(_half(base), _half(candidate)) / float(stats.norm.ppf(0.5 + CONFIDENCE / 2))
    error = float(np.sqrt(max(variance, 0.0 if np.isnan(inside) else inside**2)))
    saving, reach = steps[0] - steps[1], float(stats.t.ppf(0.5 + CONFIDENCE / 2, freedom)) * error
    blocks = sum(one.blocks for one in (*base, *candidate))
    shift = Shift(saving, (saving - reach, saving + reach), error, freedom, blocks, min(captures), CAPTURES)
    made = ab.of_captures(shift, steps, margin, subject)
    how = f"{captures[0]} captures" if captures[0] == captures[1] else f"{captures[0]} and {captures[1]} captures"
    return Untraced(made.verdict, saving, shift.interval_ns, made.mde_ns, steps, captures, 0.0, f"{how} an arm.")


def _count(side: Sequence[Baseline]) -> int:
    return sum(len(one.by_process) for one in side)


def _middle(side: Sequence[Baseline]) -> float:
    return float(np.mean([one.median_ns for one in side]))


def _half(side: Sequence[Baseline]) -> float:
    """Half of the interval of a side's mean step, from blocks alone."""
    halves = [np.hypot(one.interval_ns[0] - one.median_ns, one.interval_ns[1] - one.median_ns) for one in side]
    return float(np.sqrt(np.sum(np.square(halves)) / 2)) / len(side)


def samples(processes: int, blocks: int, kind: str = "blocks") -> str:
    """`3 processes x 20 blocks`."""
    each = blocks // processes if processes and blocks % processes == 0 else 0
    unit = "process" if processes == 1 else "processes"
    return f"{processes} {unit} x {each} {kind}" if each else f"{processes} {unit}, {blocks} {kind}"


def next_step(base: RunInfo, candidate: RunInfo) -> str:
    """What would measure both arms: `ab` for a built-in model, more captures of each for an engine."""
    if "built-in model" not in candidate.labels or candidate.device == "cpu":
        return (
            "several captures of each arm (--base RUN… --candidate RUN…, of one batch), or fusionscope ab -- A -- B "
            "with a command that times each"
        )
    words = ["fusionscope", "ab", "--model", candidate.model, "--tp", str(candidate.tp)]
    words += ["--batch", str(candidate.batch), "--context", str(candidate.context)]
    words += ["--layers", str(candidate.layers)] if "truncated layers" in candidate.labels else []
    words += ["--base", _paths(base) or "split", "--candidate", _paths(candidate) or _paths(candidate, True) or "PATHS"]
    return f"{shlex.join(words)}, then --ab RUN here"


def _paths(info: RunInfo, split: bool = False) -> str:
    """BOUNDARY=PATH,… of the sites that have another path than split, or (`split`) of all."""
    return ",".join(f"{site}={path}" for site, path in info.paths.items() if split or path != "split")
