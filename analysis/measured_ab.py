"""A comparison of two traced runs with the times of `fusionscope ab` in the place of their own untraced ones."""

from __future__ import annotations

from dataclasses import replace

from fusionscope.analysis import ab
from fusionscope.analysis.between import samples
from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.differing import same_work
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.store import Run


def with_ab(found: Comparison, measured: Run) -> Comparison:
    """The comparison, decided by arms that were measured in turn.

    Raises FusionScopeError for a run of no two arms, of other work or another GPU than the traced runs.
    """
    kind = measured.info.settings.get("ab", "")
    if not kind:
        raise FusionScopeError(f"{measured.info.id} holds no two arms: `fusionscope ab` makes such a run.")
    apart = same_work(found.base.run, measured)
    if apart:
        told = ", ".join(f"{name} {traced} and {timed}" for name, (traced, timed) in apart.items())
        raise FusionScopeError(f"The traced runs and the measured arms are not of the same work: {told}.")
    if found.incomparable:
        return found
    result = ab.compare(measured.trace.timings, found.margin, paired_processes=kind == "paths")
    saving = result.saving
    each = None if result.captures is None else result.captures // saving.processes
    said = ab.caution(saving, result.control, each)
    return replace(
        found,
        measured=result.verdict,
        measured_saving_ns=saving.value_ns,
        measured_interval_ns=saving.interval_ns,
        mde_ns=result.mde_ns,
        source="untraced" if kind == "paths" else "by two commands",
        steps_ns=(result.base_ns, result.candidate_ns),
        how=f"{samples(saving.processes, saving.blocks, 'ABBA blocks')} an arm. {said}".rstrip(),
        captures=None if result.captures is None else (result.captures, result.captures),
        between_ns=0.0,
    )
