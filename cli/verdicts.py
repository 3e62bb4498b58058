"""What a new run says at once: its boundaries, and what fusing each could save."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.analysis.analysed import Analysed
    from fusionscope.analysis.estimate import Estimate

#: Before anybody has a kernel: published operator speed-ups of one such fusion lie between 1.77 and 2.49.
ASSUMED_SPEEDUP = 2.0


def first_estimates(found: Analysed) -> list[Estimate]:
    """An estimate for every kind (and subtype, where there are several) whose sites are still split."""
    from fusionscope.analysis.estimate import Fused, estimate

    schedule = found.schedule()
    wait = found.wait()
    fused = Fused(speedup=ASSUMED_SPEEDUP)
    made = []
    for kind, sites in found.attribution.sites.items():
        subtypes = sorted({s.subtype for s in sites})
        for subtype in ["", *subtypes] if len(subtypes) > 1 else [""]:
            mine = [s for s in sites if not subtype or s.subtype == subtype]
            if mine and max(len(s.columns) for s in mine) > 1:
                made.append(estimate(found.attribution, schedule, kind, subtype, fused, found.untraced, wait=wait))
    return made


def document(made: list[Estimate]) -> list[dict[str, Any]]:
    """The same as JSON."""
    return [{"assumed_speedup": ASSUMED_SPEEDUP, **e.document()} for e in made]


def render(found: Analysed, made: list[Estimate]) -> RenderableType:
    """The verdicts for people."""
    from rich.console import Group
    from rich.text import Text

    from fusionscope.analysis.verdict import us
    from fusionscope.cli import output

    if not made:
        return Text("No boundary is left to fuse: no site takes more than one launch.")
    rows = []
    for e in made:
        low, high = e.interval_ns
        name = f"{e.boundary}:{e.subtype}" if e.subtype else e.boundary
        saving = f"{us(e.saving_ns)} [{us(low)}, {us(high)}]"
        rows.append((name, e.sites, f"{e.amdahl_gain:.2%}", saving, us(e.ceiling_ns), e.verdict.class_))
    columns = ("boundary", "sites", "Amdahl", "saving [95 %]", "ceiling", "verdict")
    floor = "not known" if made[0].mde_ns is None else us(made[0].mde_ns)
    note = (
        f"Step {us(made[0].span_ns)} ({made[0].basis}), noise floor {floor}. The verdicts guess a fused kernel "
        f"{ASSUMED_SPEEDUP:g} x as fast as the split ones; with a time of yours they narrow: fusionscope estimate "
        f"{shlex.quote(found.title)} --boundary {made[0].boundary} --fused-us T --fused-from isolated"
    )
    return Group(output.table("If it were fused", columns, rows, right=columns[1:5]), Text(note))
