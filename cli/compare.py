"""`fusionscope compare`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusionscope.cli.analysing import MarginOpt, analysed, margin_part
from fusionscope.cli.common import (
    BoundariesOpt,
    ForwardOpt,
    JsonOpt,
    RankOpt,
    RulesOpt,
    RunArg,
    SitesOpt,
    StoreOpt,
    emit,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.analysis.compare import Comparison


def compare(
    base: RunArg,
    candidate: RunArg,
    margin: MarginOpt = "0.5%",
    store: StoreOpt = None,
    rank: RankOpt = 0,
    forward: ForwardOpt = "",
    rules: RulesOpt = None,
    boundary: BoundariesOpt = None,
    sites: SitesOpt = "",
    json: JsonOpt = False,
) -> None:
    """Compare two runs: first whether the fusion fired, then what it changed, boundary by boundary.

    Example: fusionscope compare split fused
    """
    from fusionscope.analysis.compare import compare as put_beside
    from fusionscope.analysis.compare_document import document

    # The kind of forward is the base's: the candidate's is the one that is most like it.
    before = analysed(base, store, rank, forward, rules, sites, boundaries=boundary)
    after = analysed(candidate, store, rank, "", rules, sites, boundaries=boundary)
    found = put_beside(before, after, margin_part(margin))
    emit(json, document(found), lambda: render(found))


def render(found: Comparison) -> RenderableType:
    """The comparison for people."""
    import numpy as np
    from rich.console import Group
    from rich.text import Text

    from fusionscope.analysis.blocks import plain
    from fusionscope.analysis.names import short
    from fusionscope.analysis.summary_lines import differences
    from fusionscope.cli import output

    us = output.microseconds
    fired = found.fired
    if fired is not None:
        first = (
            f"{fired.boundary} fired at {fired.sites} of {fired.of_sites} sites, {fired.replays} of {fired.of_replays} "
            f"replays, {fired.ranks} of {fired.of_ranks} ranks."
        )
    elif found.same_sequence:
        first = "Did not fire: both runs launch the same kernels in the same order."
    else:
        first = "No known boundary takes fewer launches in the candidate."
    lines = [first]
    lines += [
        f"{n} sites of {b} vanished and {short(k)} appears as often: if it is the fused kernel, name it under `fused` "
        "in a rules file (--rules); nothing was subtracted."
        for k, n, b in found.suspects
    ]
    labels = [", ".join(side.info.labels) or "none" for side in (found.base, found.candidate)]
    lines.append(f"Labels: {labels[0]}." if labels[0] == labels[1] else f"Labels: {labels[0]} -> {labels[1]}.")
    lines.append(plain(differences(found)))
    totals = [("launches", found.base.forward.launches, found.candidate.forward.launches, "")]
    rows: list[tuple[object, ...]] = [(name, a, b, f"{b - a:+d}", f"{b / a - 1:+.2%}") for name, a, b, _ in totals]
    for title, value in (("kernel time us", "kernel_time"), ("busy time us", "busy_time"), ("span us", "span")):
        a, b = (float(np.median(getattr(s.forward, value))) for s in (found.base, found.candidate))
        rows.append((title, us(a), us(b), us(b - a), f"{b / a - 1:+.2%}"))
    boundaries = [
        (c.name, c.base_sites, c.candidate_sites, c.base_launches, c.candidate_launches, us(c.base_ns),
         us(c.candidate_ns), c.fired_sites)
        for c in found.changes
    ]  # fmt: skip
    kernels = [
        (short(r.name), r.where or "elsewhere", r.base.launches, r.candidate.launches, us(r.base.sum_ns),
         us(r.candidate.sum_ns), us(r.difference_ns), r.status)
        for r in found.rows[:20]
    ]  # fmt: skip
    sides = ("before", "after")
    title = f"One forward of rank {found.base.forward.rank}, traced: {found.base.title} -> {found.candidate.title}"
    parts: list[RenderableType] = [
        Text("\n".join(lines)),
        output.table(title, ("", *sides, "difference", "of before"), rows, (*sides, "difference", "of before")),
        output.table(
            "Boundaries",
            ("boundary", "sites", "sites after", "launches", "launches after", "us", "us after", "fired"),
            boundaries,
            ("sites", "sites after", "launches", "launches after", "us", "us after", "fired"),
        ),
        output.table(
            f"Kernels ({len(kernels)} of {len(found.rows)})",
            ("kernel", "where", "launches", "after", "sum us", "sum after", "difference", "status"),
            kernels,
            ("launches", "after", "sum us", "sum after", "difference"),
        ),
    ]
    if found.measured is not None:
        parts.append(Text(f"Measured ({found.base.untraced.source if found.base.untraced else ''}): "
                          f"{found.measured.class_}. {found.measured.sentence}"))  # fmt: skip
    return Group(*parts)
