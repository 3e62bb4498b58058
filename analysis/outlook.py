"""Before a kernel exists: how much there is to gain, how fast a fused kernel must be, and what it takes at least."""

from __future__ import annotations

from dataclasses import dataclass

from fusionscope.analysis.baselines import Baselines
from fusionscope.analysis.estimate import around, cautions
from fusionscope.analysis.floors import Floors
from fusionscope.analysis.tables import number
from fusionscope.analysis.target import Target
from fusionscope.analysis.verdict import BELOW_MARGIN, INCONCLUSIVE, MARGIN, NOT_MEASURABLE, WORDS, Verdict, us


@dataclass(frozen=True)
class Outlook:
    """What a fused kernel of a boundary can gain; times in ns."""

    target: Target
    floors: Floors
    margin: float
    #: The longest time of a fused site that is no slower than the split one; None where no time is.
    break_even_ns: float | None
    #: The longest time of a fused site that saves the wanted part of the step; None where no time above 0 does.
    goal_ns: float | None
    #: Saving of a kernel that takes its floor.
    at_floor_ns: float

    @property
    def wanted_ns(self) -> float:
        """Saving that is worth a merge."""
        return self.margin * self.target.step_ns

    def document(self) -> dict[str, object]:
        """The fields of `fusionscope estimate --json` that need no kernel."""
        floors = self.floors
        return {
            "break_even_us": _us(self.break_even_ns),
            "target_us": _us(self.goal_ns),
            "target_saving_ns": number(self.wanted_ns),
            "floor_us": _us(floors.floor_ns),
            "saving_at_floor_ns": number(self.at_floor_ns),
            "floors": {
                "launch_us": _us(floors.launch_ns),
                "bytes_us": _us(floors.bytes_ns),
                "memory_gbps": floors.memory_gbps,
                "memory_from": floors.memory_from or None,
                "all_reduce_us": _us(floors.reduce_ns),
                "unknown": list(floors.unknown),
            },
            "ceiling_ns": number(self.target.ceiling_ns),
            "ceiling_source": "schedule",
            "needs": self.sentence(),
        }

    def sentence(self, then: str = ". No") -> str:
        """How fast the kernel must be; `then` leads to that no kernel is."""
        part = f"{100 * self.margin:g} %"
        if self.break_even_ns is None:
            return f"Saves nothing at any time of a fused kernel: a site costs the step {us(self.target.ceiling_ns)}."
        even = f"equals split at {self.break_even_ns / 1000:.1f} us"
        if self.goal_ns is None:
            return (
                f"Saves {part} of the step ({us(self.wanted_ns)}) at no time of a fused kernel: the ceiling is "
                f"{us(self.target.ceiling_ns)}; {even} a site."
            )
        most = f"{self.goal_ns / 1000:.1f} us"
        said = f"Saves {part} of the step only if the fused kernel takes at most {most} a site; {even}"
        if self.goal_ns < self.floors.floor_ns:
            said += f"{then} kernel does: its floor is {self.floors.floor_ns / 1000:.1f} us"
        return f"{said}."

    def verdict(self) -> Verdict:
        """What holds whatever the kernel: undecided, unless even the floor cannot clear noise or margin."""
        found, best = self.target, self.at_floor_ns
        mde = found.untraced.mde_ns if found.untraced else None
        said = f"a kernel at its floor saves {us(best)} of {us(found.step_ns)} ({_part(best, found.step_ns)})"
        # "No kernel can" is said only where what the neighbours may gain does not change it.
        most = best + around(found)
        above = most > self.wanted_ns
        if mde is not None and most <= mde:
            name, sentence = (
                NOT_MEASURABLE,
                f"No kernel can make a measurable difference: {said}; noise floor {us(mde)}.",
            )
        elif not above:
            name, sentence = BELOW_MARGIN, f"No kernel can save the margin: {said}; margin {us(self.wanted_ns)}."
        else:
            name, sentence = INCONCLUSIVE, f"Undecided until there is a kernel: {said}. {self.sentence()}"
        caution = cautions(found, None)
        sentence = f"{sentence} {caution}" if caution else sentence
        words = "no kernel can save the margin" if name == BELOW_MARGIN else WORDS[name]
        need = self.sentence("; no").rstrip(".")
        quote = f"Predicted: fusing {found.name} at {len(found.sites)} sites can save up to {us(best)} of "
        quote += f"{us(found.step_ns)} ({_part(best, found.step_ns)}): {words}; {need[0].lower()}{need[1:]}."
        return Verdict(
            name, "predicted", None if mde is None else best > mde, best > self.wanted_ns, 0.5, sentence, quote
        )


def outlook(found: Target, floors: Floors, margin: float = MARGIN, launches: int = 1) -> Outlook:
    """Work out how fast a fused kernel of `launches` launches a site must be."""
    wanted = margin * found.step_ns
    return Outlook(
        target=found,
        floors=floors,
        margin=margin,
        break_even_ns=found.time_for(0.0, launches),
        goal_ns=found.time_for(wanted, launches),
        at_floor_ns=min(found.saving_at(floors.floor_ns, launches), found.ceiling_ns),
    )


def document(found: Outlook, plain: Baselines) -> dict[str, object]:
    """`fusionscope estimate --json` without a kernel."""
    target = found.target
    mde = target.untraced.mde_ns if target.untraced else None
    return {
        "boundary": target.boundary,
        "subtype": target.subtype,
        "sites": len(target.sites),
        "schedule": {
            "span_ns": number(target.step_ns),
            "basis": target.basis,
            "traced_span_ns": number(target.span_ns),
            "inflation_ns_per_launch": number(target.tracer_ns),
            "edges": "graph" if target.schedule.real_edges else "inferred",
            "self_check": True,
        },
        "abutting": target.forward.abutting,
        "noise": {"mde_ns": None if mde is None else number(mde)},
        **found.document(),
        "baselines": plain.document(target.step_ns),
        "verdict": found.verdict().document(),
    }


def _us(ns: float | None) -> float | None:
    return None if ns is None else ns / 1000


def _part(ns: float, step: float) -> str:
    return f"{ns / step:.2%}" if step else "no step"
