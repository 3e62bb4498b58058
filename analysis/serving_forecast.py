"""What traced runs foretell of serving runs, and serving runs as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.batches import CONTROL, batch_of_run, rows_of
from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.serving import Serving, StepSaving, sentences
from fusionscope.analysis.summary_lines import predicted


def step_savings(pairs: Sequence[Comparison], margin: float) -> dict[int, StepSaving]:
    """Batch -> what one step saves there: measured where it was measured, else predicted."""
    found: dict[int, StepSaving] = {}
    for one, row in zip(pairs, rows_of(pairs, margin), strict=True):
        batch = batch_of_run(one.base)
        if batch and row.saving_ns is not None and row.interval_ns is not None and row.state != CONTROL:
            guess = predicted(one, margin)
            ceiling = guess.ceiling_ns if guess else None
            found[batch] = StepSaving(row.step_ns, row.saving_ns, row.interval_ns, ceiling)
    return found


def estimated(run: Analysed, saving_ns: float) -> dict[int, StepSaving]:
    """The same of a run alone, whose saving was estimated."""
    batch = batch_of_run(run)
    return {batch: StepSaving(run.step_ns(), saving_ns, (saving_ns, saving_ns))} if batch else {}


def control_batches(pairs: Sequence[Comparison]) -> set[int]:
    """Batches at which both sides run the same kernels."""
    return {batch_of_run(one.base) for one in pairs if one.same_sequence} - {0}


def document(found: Serving) -> dict[str, object]:
    """Serving runs as the JSON of `fusionscope serving`. Parts are of the base; a saving is above 0."""
    acceptance = found.acceptance
    return {
        "rows": [asdict(row) for row in found.rows],
        "noise": {"sigma": found.noise.sigma if found.noise.freedom else None, "freedom": found.noise.freedom},
        "acceptance": None if acceptance is None else {**asdict(acceptance), "dropped": acceptance.dropped},
        "unmatched": list(found.unmatched),
        "ttft_range_ms": found.ttft_range_ms,
        "says": sentences(found),
    }
