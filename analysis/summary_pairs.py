"""Several pairs in one summary: batches of one fusion, or several candidates, one row each."""

from __future__ import annotations

from fusionscope.analysis.blocks import Line, Table, data, line
from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.quantities import in_us, pair, percent
from fusionscope.analysis.summary_lines import WORDS, predicted, verdict_of
from fusionscope.profiler.errors import FusionScopeError


def check_pairs(base: list[str], candidate: list[str]) -> list[tuple[str, str]]:
    """(base, candidate) of each pair: as many bases as candidates, or one base for all.

    Raises FusionScopeError for anything else.
    """
    if not base or not candidate:
        raise FusionScopeError("A summary takes a base and at least one candidate: fusionscope summary BASE CANDIDATE.")
    if len(base) == 1:
        return [(base[0], one) for one in candidate]
    if len(base) != len(candidate):
        raise FusionScopeError(
            f"--base names {len(base)} runs and --candidate {len(candidate)}: give as many of each, or one base."
        )
    return list(zip(base, candidate, strict=True))


def pair_name(found: Comparison, among: list[Comparison]) -> str:
    """What tells a pair from the others: its batch, else its candidate's name."""
    batches = [one.base.info.batch for one in among]
    if len(set(batches)) == len(batches):
        return f"batch {found.base.info.batch}"
    return found.candidate.title


def pairs_table(among: list[Comparison], margin: float) -> Table:
    """One row a pair: launches, step, saving with interval, verdict, and how it is known."""
    head = ("run", "launches", "step, untraced", "saving [95 %]", "of the step", "verdict")
    return Table(tuple(line(text) for text in head), tuple(_row(one, among, margin) for one in among))


def _row(found: Comparison, among: list[Comparison], margin: float) -> tuple[Line, ...]:
    name = line(data(pair_name(found, among)))
    launches = f"{found.base.forward.launches} -> {found.candidate.forward.launches}"
    if found.incomparable:
        why = ", ".join(found.incomparable)
        return (name, (launches,), ("",), ("",), ("",), (f"not comparable ({why})",))
    guess = predicted(found, margin)
    decided = verdict_of(found, guess)
    word = WORDS[decided.class_][0] if decided else "did not fire" if found.same_sequence else "no known fusion"
    base, candidate = found.base.untraced, found.candidate.untraced
    gain, interval, kind = found.measured_saving_ns, found.measured_interval_ns, ""
    if gain is None and guess is not None:
        gain, interval, kind = guess.saving_ns, guess.interval_ns, " (predicted)"
    step = pair(base.median_ns, candidate.median_ns) if base and candidate else "not measured"
    cells = (launches, step, "", "", word + kind)
    if gain is not None and interval is not None:
        said = f"{in_us(gain)} us [{in_us(interval[0])}, {in_us(interval[1])}]"
        cells = (launches, step, said, percent(-gain / found.base.step_ns()), word + kind)
    return (name, *(line(cell) for cell in cells))
