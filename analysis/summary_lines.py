"""The lines of a summary before its table: the claim, what ran, the measurement, the verdict, proof that it fired."""

from __future__ import annotations

import numpy as np

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.beside import with_step
from fusionscope.analysis.blocks import Code, Inline, Line, bold, data, joined
from fusionscope.analysis.candidate import begins_early, fused_in
from fusionscope.analysis.changes import Change
from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.differing import machine
from fusionscope.analysis.estimate import Estimate, of_target
from fusionscope.analysis.names import short
from fusionscope.analysis.observed import alone
from fusionscope.analysis.quantities import in_us, pair, percent, saving
from fusionscope.analysis.serving import Serving, guarded
from fusionscope.analysis.target import target
from fusionscope.analysis.verdict import (
    BELOW_MARGIN,
    INCONCLUSIVE,
    NOT_MEASURABLE,
    OBSERVED,
    SLOWER,
    WORTH_MERGING,
    Verdict,
)  # fmt: skip

BUILT_IN = (
    "built-in model: random weights, synthetic routing, FusionScope's own and libraries' kernels, not an engine's"
)
CPU = "Times are a CPU's and say nothing of a GPU; launches and sites are exact."
#: Fields that differ which are named; the rest is counted.
DIFFERENCES = 8
WORDS = {
    WORTH_MERGING: ("faster, above noise and margin", "worth merging on time alone", "measurable"),
    BELOW_MARGIN: ("faster and above noise, but below the margin", "real and small", "measurable, below the margin"),
    NOT_MEASURABLE: ("no measurable difference", "within the noise", "not measurable"),
    SLOWER: ("slower, above noise", "a loss on time", "slower"),
    INCONCLUSIVE: ("undecided", "", "undecided"),
}


def predicted(found: Comparison, margin: float) -> Estimate | None:
    """What the base run and the candidate's trace, without its untraced times, would have predicted.

    None without a fusion; two at once have one measured saving and no prediction to hold against it. The candidate's
    trace gives the fused kernel's time and, for graphs of one rank under one profiler, what its whole step gained
    beside that.
    """
    if len(found.claims) != 1 or found.incomparable or not found.claims[0][0].candidate_sites:
        return None
    claim, base = found.claims[0][0], found.base
    wait = base.wait()
    fused = fused_in(found.candidate, claim.boundary, claim.subtype, net_of_wait=wait is not None)
    goal = target(base.attribution, base.schedule(), claim.boundary, claim.subtype, base.untraced, wait)
    candidate = found.candidate.forward
    # Spans under two profilers differ by what each of them adds.
    alike = "profiler" not in found.doubts
    if alike and wait is None and base.forward.graph_launches and candidate.graph_launches:
        early = begins_early(found.candidate, claim.boundary, claim.subtype)
        fused = with_step(goal, fused, [goal.span_ns], [float(np.median(candidate.span))], early)
    return of_target(goal, fused, margin)


def verdict_of(found: Comparison, guess: Estimate | None, serving: Serving | None = None) -> Verdict | None:
    """The verdict on untraced times where there is one, else the predicted; None where the runs cannot be compared.

    Serving runs whose acceptance length fell forbid a positive one.
    """
    if found.incomparable:
        return None
    decided = found.measured or (guess.verdict if guess else None)
    return guarded(decided, serving) if decided is not None and serving is not None else decided


def claim(found: Comparison, guess: Estimate | None, serving: Serving | None = None) -> Line:
    """What changed and by how much, in one line."""
    if found.incomparable:
        return ("Not comparable: ", *_changes(found.incomparable))
    if found.same_sequence:
        return ("The fusion did not fire: both runs launch the same kernels in the same order",)
    said = (_subject(found), ": ", *_by_how_much(found, guess, serving))
    return tuple(part for piece in said for part in (piece if isinstance(piece, tuple) else (piece,)))


def _subject(found: Comparison) -> Line:
    if not found.claims:
        return ("No known boundary became fewer launches",)
    first = found.claims[0][0]
    more = joined([(Code(change.name), f" at {sites} more") for change, sites in found.claims[1:]], " and ")
    return (Code(first.name), f" fused at {first.fired_sites} sites", *((" and ", *more) if more else ()))


def _by_how_much(found: Comparison, guess: Estimate | None, serving: Serving | None) -> Line:
    decided = verdict_of(found, guess, serving)
    step = found.step_ns
    of = "replay" if found.base.forward.graph_launches else "forward"
    if found.measured is not None and found.measured_saving_ns is not None:
        gain, how = found.measured_saving_ns, ""
    elif guess is not None and guess.mde_ns is not None:
        gain, how = guess.saving_ns, "predicted, "
    else:
        spans = [float(np.median(side.forward.span)) for side in (found.base, found.candidate)]
        gain, step, how, decided = spans[0] - spans[1], spans[0], "traced only, ", None
        of = "traced span"
    class_ = decided.class_ if decided else INCONCLUSIVE
    ending = WORDS[class_][2]
    if decided is not None and decided.kind == OBSERVED:
        ending = f"observed in {alone(found.captures)}"
    word = "less" if gain >= 0 else "more"
    size = f"{saving(gain)} {word} per decode forward ({percent(-gain / step)} of the {of})"
    if abs(gain) < 1:
        size = f"the {of} is unchanged"
    if class_ == NOT_MEASURABLE:
        return (f"no measurable difference, {how}{size}",)
    return (f"{size}, {how}{ending}",)


def what_ran(found: Comparison) -> Line:
    """Model, machine, shape, ranks, labels of the candidate's run."""
    run, info = found.candidate, found.candidate.info
    known = machine(run)
    parts: list[Line] = [(data(info.settings["engine"]),)] if info.settings.get("engine") else []
    parts.append((data(info.model),) if info.model else ("unknown model (imported)",))
    device = known.get("gpu") or ((known.get("cpu") or "CPU") if info.device == "cpu" else "unknown GPU")
    parts.append((data(device), f" TP{info.tp}" if info.tp > 0 else ""))
    if info.batch > 0:
        parts.append((f"batch {info.batch}",))
    if info.context > 0:
        parts.append((f"context {info.context}",))
    parts.append((_graph(run, known.get("gpu", "")),))
    ranks = run.run.trace.kernels["rank"].nunique()
    of = max(ranks, 0 if info.emulated_ranks else info.world_size)
    parts.append((f"{ranks} of {of} ranks traced",))
    if info.profiler:
        parts.append((data(info.profiler),))
    labels = dict.fromkeys([*found.base.info.labels, *info.labels])
    built_in = f" ({BUILT_IN})" if "built-in model" in labels else ""
    cpu = f" {CPU}" if "cpu" in labels else ""
    told = joined([(data(label, 60),) for label in list(labels)[:20]]) or ("none",)
    return (*joined(parts), f"{built_in}. Labels: ", *told, f".{cpu}")


def _graph(run: Analysed, gpu: str) -> str:
    graphs = run.forward.graph_launches
    if not graphs:
        return "no graph"
    nvidia = "NVIDIA" in gpu or gpu.startswith(("Tesla", "Quadro", "GeForce"))
    maker = "CUDA " if nvidia else "HIP " if "AMD" in gpu or gpu.startswith("MI") else ""
    return f"{maker or 'one '}graph" if graphs == 1 else f"{graphs} {maker}graphs a forward"


def measurement(found: Comparison, guess: Estimate | None, margin: float) -> Line:
    """The untraced times of both sides; without them the prediction, said to be one."""
    interval, steps = found.measured_interval_ns, found.steps_ns
    if interval is not None and steps is not None:
        gain = _gain(found.measured_saving_ns or 0.0, interval, "95 % CI")
        floor = "not known" if found.mde_ns is None else f"{in_us(found.mde_ns)} us"
        need = in_us(margin * steps[0])
        known = f"Measured, {found.source}:"
        if found.measured is not None and found.measured.kind == OBSERVED:
            known = f"Observed in {alone(found.captures)}, {found.source}:"
        return (
            bold(known),
            f" {pair(*steps)}, {gain}; noise floor (A/A) {floor}, margin {margin * 100:g} % = {need} us.",
        )
    if guess is not None:
        said = f" {_interval(guess)} of {in_us(guess.span_ns)} us ({guess.basis}); nothing was measured untraced on "
        return (
            bold("Predicted, not measured:"),
            f"{said}both sides. Margin {margin * 100:g} % = {in_us(margin * guess.span_ns)} us.",
        )
    return (bold("Measured, untraced:"), " nothing; there are no replay times without a profiler of both runs.")


def _interval(guess: Estimate) -> str:
    return _gain(guess.saving_ns, guess.interval_ns)


def _gain(saving_ns: float, interval_ns: tuple[float, float], what: str = "") -> str:
    """`saving 152 us [143, 161]`, and a loss as `costing`, both with positive numbers."""
    low, high = interval_ns if saving_ns >= 0 else (-interval_ns[1], -interval_ns[0])
    word = "saving" if saving_ns >= 0 else "costing"
    label = f"{what} " if what else ""
    return f"{word} {in_us(abs(saving_ns))} us [{label}{in_us(low)}, {in_us(high)}]"


def verdict(found: Comparison, guess: Estimate | None, serving: Serving | None = None) -> Line:
    """The verdict in words, what it stands on, and the prediction beside a measurement."""
    decided = verdict_of(found, guess, serving)
    several = " Predicted: nothing, since several boundaries changed at once; compare them one at a time."
    more = several if len(found.claims) > 1 else ""
    if decided is None:
        why = "nothing was measured untraced." if found.claims else "nothing was fused."
        return (bold("Verdict:"), f" none; {why}{more}")
    words, means, _ = WORDS[decided.class_]
    kind = ", predicted" if decided.kind == "predicted" else ""
    parts: list[Inline] = [bold(f"Verdict{kind}: {words}"), f" ({means})." if means else "."]
    if decided.class_ == INCONCLUSIVE or decided.kind != "measured":
        # Its first words are the verdict's, which stand there already.
        said = decided.sentence.partition(": ")[2] or decided.sentence
        parts.append(f" {said[0].upper()}{said[1:]}")
    else:
        parts.append(f" {found.how}")
    if decided.kind != "predicted" and guess is not None:
        parts.append(f" Predicted from both traces: {_interval(guess)}; Amdahl "
                     f"{percent(guess.amdahl_gain).lstrip('+')} of the span.")  # fmt: skip
    parts.append(more)
    return tuple(parts)


def fired(found: Comparison) -> Line:
    """In how many sites, replays and ranks the fusion fired, and what else differs."""
    fact = found.fired
    if fact is not None:
        parts: list[Inline] = [
            bold("Fired:"),
            f" {fact.told()}.",
        ]
    elif found.suspects:
        parts = [bold("Fired:"), " not known."]
        for kernel, count, boundary in found.suspects[:3]:
            parts += [f" {count} sites of ", Code(boundary), " vanished and ", Code(short(kernel)),
                      " appears as often: if it is the fused kernel, name it under ", Code("fused"),
                      " in a rules file (--rules); nothing was subtracted."]  # fmt: skip
    else:
        parts = [bold("Fired:"), " no."]
        for change in _grown(found.changes):
            parts += [" ", Code(change.name), f" takes {change.candidate_launches} launches instead of "
                      f"{change.base_launches}."]  # fmt: skip
    return (*parts, " ", *differences(found))


def _grown(changes: list[Change]) -> list[Change]:
    return [c for c in changes if c.base_sites and c.candidate_launches > c.base_launches]


def differences(found: Comparison) -> Line:
    """What differs between the two runs, in one sentence."""
    told = _changes(found.differs)
    if any(run.info.imported for run in (found.base, found.candidate)):
        recorded: Line = ("; recorded: ", *told) if told else ()
        return (bold("What differs:"), " unknown (imported)", *recorded, ".")
    word = "Only difference" if len(found.differs) == 1 else "What differs"
    return (bold(f"{word}:"), " ", *(told or ("nothing that was recorded",)), ".")


def doubtful(found: Comparison) -> Line | None:
    """What makes the comparison doubtful, None for nothing."""
    if not found.doubts:
        return None
    return (bold("Doubtful:"), " the times were not taken alike: ", *_changes(found.doubts), ".")


def _changes(fields: dict[str, tuple[str, str]]) -> Line:
    told: list[Line] = [
        (Code(name), " ", data(before or "unset", 60), " -> ", data(after or "unset", 60))
        for name, (before, after) in list(fields.items())[:DIFFERENCES]
    ]
    if len(fields) > DIFFERENCES:
        told.append((f"{len(fields) - DIFFERENCES} more (in the fold)",))
    return joined(told)
