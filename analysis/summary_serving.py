"""The lines of a summary on batches, serving and accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from fusionscope.analysis.accuracy import Accuracy
from fusionscope.analysis.batches import CONTROL, BatchRow, gate
from fusionscope.analysis.blocks import Inline, Line, bold, data
from fusionscope.analysis.quantities import in_us
from fusionscope.analysis.serving import Serving, sentences


def batches_line(rows: Sequence[BatchRow]) -> Line | None:
    """What each size saves, and the gate; None for one size."""
    if len(rows) < 2:
        return None
    ordered = sorted(rows, key=lambda row: row.tokens)
    told = [
        f"{row.tokens}: {in_us(-row.saving_ns)} us" if row.saving_ns is not None else f"{row.tokens}: {row.state}"
        for row in ordered
        if row.state != CONTROL
    ]
    decided = gate(rows)
    off = [str(row.tokens) for row in ordered if row.state == CONTROL]
    if off:
        part = f", +-{100 * decided.control_part:.1f} %" if decided.control_part is not None else ""
        told.append(f"{' and '.join(off)}: fusion off, same kernels (controls{part})")
    return (bold("Batches:"), f" {' | '.join(told)}. {decided.sentence}")


def serving_line(found: Serving) -> Line:
    """What serving runs show beside what the forward predicts."""
    return (bold("Serving:"), f" {' '.join(sentences(found))}")


def accuracy_line(scores: Sequence[Accuracy], found: Serving | None = None) -> Line | None:
    """What two evaluations can show, and the acceptance length; None where neither was measured."""
    parts: list[Inline] = []
    for score in scores:
        # The name is the user's own text; the sentence after it is ours.
        parts += [" ", data(score.name), score.sentence().removeprefix(score.name)]
    if scores and (found is None or found.acceptance is None):
        parts.append(" Acceptance length: not measured.")
    return (bold("Accuracy:"), *parts) if parts else None
