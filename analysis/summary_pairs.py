"""Several pairs in one summary: batches of one fusion, or several candidates, one row each."""

from __future__ import annotations

from fusionscope.analysis.batches import gate, rows_of
from fusionscope.analysis.blocks import Line, Table, bold, data, line
from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.observed import alone
from fusionscope.analysis.quantities import in_us, pair, percent
from fusionscope.analysis.serving import Serving
from fusionscope.analysis.summary_lines import WORDS, predicted, verdict_of
from fusionscope.analysis.verdict import OBSERVED


def pair_name(found: Comparison, among: list[Comparison]) -> str:
    """What tells a pair from the others: its batch, else its candidate's name."""
    batches = [one.base.info.batch for one in among]
    if len(set(batches)) == len(batches):
        return f"batch {found.base.info.batch}"
    return found.candidate.title


def pairs_table(among: list[Comparison], margin: float, serving: Serving | None = None) -> Table:
    """One row a pair: launches, step, saving with interval, verdict, and how it is known."""
    head = ("run", "launches", "step, untraced", "saving [95 %]", "of the step", "verdict")
    return Table(tuple(line(text) for text in head), tuple(_row(one, among, margin, serving) for one in among))


def gate_line(among: list[Comparison], margin: float, serving: Serving | None = None) -> Line | None:
    """Up to how many tokens the fusion is worth switching on; None where the pairs are no series of batches."""
    rows = rows_of(among, margin, serving)
    if len({row.tokens for row in rows}) < len(rows) or len(rows) < 2:
        return None
    decided = gate(rows)
    control = ""
    if decided.control_part is not None:
        control = f" Controls differ by up to {decided.control_part:.2%}".replace("%", " %") + "."
    return (bold("Gate:"), f" {decided.sentence[0].lower()}{decided.sentence[1:]}{control}")


def _row(found: Comparison, among: list[Comparison], margin: float, serving: Serving | None) -> tuple[Line, ...]:
    name = line(data(pair_name(found, among)))
    launches = f"{found.base.forward.launches} -> {found.candidate.forward.launches}"
    if found.incomparable:
        why = ", ".join(found.incomparable)
        return (name, (launches,), ("",), ("",), ("",), (f"not comparable ({why})",))
    guess = predicted(found, margin)
    decided = verdict_of(found, guess, serving)
    word = WORDS[decided.class_][0] if decided else "no known fusion"
    if decided is not None and decided.kind == OBSERVED:
        word += f", observed in {alone(found.captures)}"
    if found.same_sequence:
        # Above the gate of a fusion both sides run the same kernels, and what they differ by is noise.
        word = "control: the same kernels"
    gain, interval, kind = found.measured_saving_ns, found.measured_interval_ns, ""
    if gain is None and guess is not None:
        gain, interval, kind = guess.saving_ns, guess.interval_ns, " (predicted)"
    step = pair(*found.steps_ns) if found.steps_ns else "not measured"
    cells = (launches, step, "", "", word + kind)
    if gain is not None and interval is not None:
        said = f"{in_us(gain)} us [{in_us(interval[0])}, {in_us(interval[1])}]"
        cells = (launches, step, said, percent(-gain / found.step_ns), word + kind)
    return (name, *(line(cell) for cell in cells))
