"""Gates of a continuous integration: which answers of a comparison fail it."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.serving import Serving
from fusionscope.analysis.summary_lines import predicted, verdict_of
from fusionscope.analysis.summary_pairs import pair_name
from fusionscope.analysis.verdict import INCONCLUSIVE
from fusionscope.profiler.errors import FusionScopeError

#: Gate -> class of verdict that closes it; those of None look at something else.
GATES: dict[str, str | None] = {
    "slower": "slower",
    "below-margin": "below_margin",
    "not-measurable": "not_measurable",
    "inconclusive": INCONCLUSIVE,
    "incomparable": None,
    "not-fired": None,
    "launches-grew": None,
}


@dataclass(frozen=True)
class Outcome:
    """What the gates said. `exit_code` is 0, 1 for a gate that holds, 2 for incomparable runs."""

    exit_code: int = 0
    #: Gates that hold, in the order of GATES.
    failed: list[str] = field(default_factory=list)
    #: One full sentence for each pair and gate, and warnings.
    sentences: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Gates:
    """The gates that were chosen."""

    chosen: tuple[str, ...] = ()

    @staticmethod
    def of(text: str) -> Gates:
        """Gates from `slower,not-fired`. Raises FusionScopeError for a name that is none."""
        names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        for name in names:
            if name not in GATES:
                raise FusionScopeError(f"--fail-if {name} is no gate: choose among {', '.join(GATES)}.")
        return Gates(names)

    def of_pairs(self, found: list[Comparison], margin: float, serving: Serving | None = None) -> Outcome:
        """Look at every pair. An undecided verdict that is no gate here is a warning where any gate was chosen."""
        failed: set[str] = set()
        sentences = []
        for one in found:
            facts = _facts(one, margin, serving)
            name = pair_name(one, found) if len(found) > 1 else f"{one.base.title} -> {one.candidate.title}"
            for gate in self.chosen:
                if gate in facts:
                    failed.add(gate)
                    sentences.append(f"Gate {gate} failed for {name}: {facts[gate]}")
            if self.chosen and "inconclusive" in facts and "inconclusive" not in self.chosen:
                sentences.append(f"Warning for {name}: {facts['inconclusive']}")
        code = 2 if "incomparable" in failed else 1 if failed else 0
        return Outcome(code, [gate for gate in GATES if gate in failed], sentences)


def _facts(found: Comparison, margin: float, serving: Serving | None) -> dict[str, str]:
    """The gates that hold of one pair, each with the sentence that says why."""
    facts = {}
    if found.incomparable:
        told = ", ".join(f"{name} {before} -> {after}" for name, (before, after) in found.incomparable.items())
        facts["incomparable"] = f"the runs differ in {told}, so their times are not compared."
    if found.fired is None:
        facts["not-fired"] = "no known boundary takes fewer launches in the candidate."
    launches = (found.base.forward.launches, found.candidate.forward.launches)
    if launches[1] > launches[0]:
        facts["launches-grew"] = f"the forward grew from {launches[0]} to {launches[1]} launches."
    decided = verdict_of(found, predicted(found, margin), serving)
    if decided is None and not found.incomparable:
        facts["inconclusive"] = "there is no verdict, since nothing was measured untraced and nothing predicted."
    for gate, class_ in GATES.items():
        if decided is not None and class_ == decided.class_:
            facts[gate] = f"{decided.kind}: {decided.sentence}"
    return facts
