"""Predicted against measured: what a split run alone would have foretold of a fused run that was measured too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.estimate import Estimate
from fusionscope.analysis.knockout import Ceiling, ceilings
from fusionscope.analysis.summary_lines import predicted
from fusionscope.analysis.verdict import MARGIN
from fusionscope.profiler.errors import FusionScopeError
from fusionscope.profiler.runinfo import RunInfo
from fusionscope.profiler.store import Run, Store

#: Fields of run.json in which two runs of one experiment agree.
_SAME = ("model", "tp", "batch", "context", "layers", "device", "emulated_ranks", "labels")


@dataclass(frozen=True)
class Prediction:
    """A fusion that was predicted from the base run and measured untraced; savings in ns of one step."""

    base: RunInfo
    candidate: RunInfo
    boundary: str
    sites: int
    predicted: Estimate
    measured_ns: float
    measured_interval_ns: tuple[float, float]
    #: "measured", or "observed": in one capture of an arm.
    kind: str = "measured"

    @property
    def error_part(self) -> float:
        """Predicted minus measured, as a part of the base's step."""
        return (self.predicted.saving_ns - self.measured_ns) / self.predicted.span_ns

    @property
    def held(self) -> bool:
        """Whether the measured saving lies in the predicted interval."""
        low, high = self.predicted.interval_ns
        return low <= self.measured_ns <= high


def prediction(found: Comparison, margin: float = MARGIN) -> Prediction | None:
    """Predicted and measured of a comparison; None without untraced times of both sides, or with several fusions."""
    guess = predicted(found, margin)
    if guess is None or found.measured_saving_ns is None or found.measured_interval_ns is None:
        return None
    claim, sites = found.claims[0]
    return Prediction(
        base=found.base.info,
        candidate=found.candidate.info,
        boundary=claim.name,
        sites=sites,
        predicted=guess,
        measured_ns=found.measured_saving_ns,
        measured_interval_ns=found.measured_interval_ns,
        kind=found.measured.kind if found.measured is not None else "measured",
    )


def pairs(infos: Iterable[RunInfo]) -> list[tuple[RunInfo, RunInfo]]:
    """(base, candidate) of the same experiment where the candidate asked for a fused path that the base did not.

    Of bases with the same paths the one captured nearest in time stands for all: machines drift. Imported runs are
    left out: they do not say which paths they took.
    """
    groups: dict[tuple[object, ...], list[RunInfo]] = {}
    for info in infos:
        if not info.imported and info.model:
            groups.setdefault(_experiment(info), []).append(info)
    found = []
    for group in groups.values():
        for candidate in group:
            nearest: dict[tuple[tuple[str, str], ...], RunInfo] = {}
            for base in sorted(group, key=lambda info: abs(_when(info) - _when(candidate))):
                if base is not candidate and _adds_a_fusion(base, candidate):
                    nearest.setdefault(tuple(sorted(_fused(base).items())), base)
            found += [(base, candidate) for base in nearest.values()]
    return found


def _when(info: RunInfo) -> float:
    """When a run was captured, seconds; 0 where it does not say."""
    try:
        return datetime.fromisoformat(info.created).timestamp()
    except ValueError:
        return 0.0


def batches(infos: Iterable[RunInfo], of: RunInfo) -> list[RunInfo]:
    """The newest run of each batch size that is the same experiment as `of` but for the batch, `of` itself included."""
    found = {of.batch: of}
    for info in sorted(infos, key=lambda i: i.created):
        same = _experiment(info)[:-1] == _experiment(of)[:-1] and _fused(info) == _fused(of)
        if same and info.model and info.batch > 0 and info.batch != of.batch:
            found[info.batch] = info
    return [found[batch] for batch in sorted(found)]


def knockouts(infos: Iterable[RunInfo], of: RunInfo, boundary: str) -> list[RunInfo]:
    """Runs that hold a knock-out of a kind in the same program as `of`, the newest first."""
    found = [
        info
        for info in infos
        if boundary in info.settings.get("knockout", "").split(",")
        and info.paths == of.paths
        and all(getattr(info, name) == getattr(of, name) for name in ("model", "tp", "batch", "context", "layers"))
        and info.machine.get("gpu", "") == of.machine.get("gpu", "")
    ]
    return sorted(found, key=lambda info: info.created, reverse=True)


def knocked_out(run: Run, boundary: str) -> Ceiling:
    """The measured ceiling of a kind, from a run that holds its knock-out.

    Raises FusionScopeError where the run holds none, or too little of it.
    """
    nodes = run.info.settings.get(f"nodes {boundary}", "")
    if not nodes.isdigit():
        raise FusionScopeError(
            f"Run {run.info.id} holds no knock-out of {boundary}: `fusionscope knockout` measures one."
        )
    cost = float(run.info.settings.get("disabled_node_ns", "0"))
    (found,) = ceilings(run.trace.timings, {boundary: int(nodes)}, cost)
    return found


def newest_knockout(store: Store, of: RunInfo, boundary: str) -> Ceiling | None:
    """The newest measured ceiling of a kind in the same program, None where the store holds none."""
    for info in knockouts((listed.info for listed in store.list() if listed.info is not None), of, boundary):
        try:
            return knocked_out(store.load(info.id), boundary)
        except FusionScopeError:
            continue
    return None


def _experiment(info: RunInfo) -> tuple[object, ...]:
    same = (tuple(value) if isinstance(value := getattr(info, name), list) else value for name in _SAME)
    known = dict(zip(_SAME, same, strict=True))
    batch = known.pop("batch")
    return (*known.values(), info.machine.get("gpu", ""), info.profiler, batch)


def _fused(info: RunInfo) -> dict[str, str]:
    return {kind: path for kind, path in info.paths.items() if path != "split"}


def _adds_a_fusion(base: RunInfo, candidate: RunInfo) -> bool:
    before, after = _fused(base), _fused(candidate)
    return before != after and before.items() <= after.items()


@dataclass(frozen=True)
class Agreement:
    """How well predictions fit; errors are parts of the step, without sign."""

    pairs: int
    held: int
    median_error: float
    largest_error: float


def agreement(found: Sequence[Prediction]) -> Agreement | None:
    """The accuracy of some predictions; None where there are none."""
    if not found:
        return None
    errors = np.abs([p.error_part for p in found])
    return Agreement(len(found), sum(p.held for p in found), float(np.median(errors)), float(errors.max()))
