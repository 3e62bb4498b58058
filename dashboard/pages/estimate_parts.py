"""The numbers of an estimate: saving, ceiling, floors, what plainer estimators say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dash.development.base_component import Component

from fusionscope.analysis.verdict import us
from fusionscope.dashboard import parts

if TYPE_CHECKING:
    from fusionscope.dashboard.pages.estimate import Answer


def numbers(answer: Answer, margin: float) -> Component:
    """The estimate in one row of numbers."""
    made = answer.made
    low, high = made.interval_ns
    edges = "the graph's own edges" if made.real_edges else "inferred edges"
    rows = [
        ("Saving", us(made.saving_ns), f"95 %: {us(low)} to {us(high)}"),
        ("Of the step", f"{made.saving_ns / made.span_ns:.2%}", f"step {us(made.span_ns)}, {made.basis}"),
        ("Amdahl", f"{made.amdahl_gain:.2%}", f"{made.share:.2%} of the span, {made.speedup:.2f} x"),
        ("Ceiling", us(made.ceiling_ns), f"from the schedule, {edges}"),
    ]
    if answer.knocked_out is not None:
        raw = answer.knocked_out.raw
        rows.append(
            (
                "Ceiling, measured",
                us(answer.knocked_out.corrected_ns),
                f"knock-out; raw {us(raw.value_ns)}, a lower bound",
            )
        )
    rows += [
        ("Noise floor", "unknown" if made.mde_ns is None else us(made.mde_ns), "smallest difference that shows"),
        ("Margin", us(margin * made.span_ns), f"{margin:.2%} of the step"),
    ]
    if made.wait_ns is not None:
        rows.append(("Wait in the sites", us(made.wait_ns), "for other ranks; it stays"))
    return parts.stats(rows)


def before_a_kernel(answer: Answer) -> Component:
    """How fast a fused kernel must be, whatever one is assumed."""
    ahead = answer.ahead
    least = ahead.floors
    parts_of = [f"launch {us(least.launch_ns)}"]
    parts_of += [f"bytes {us(least.bytes_ns)}"] if least.bytes_ns is not None else []
    parts_of += [f"all-reduce {us(least.reduce_ns)}"] if least.reduce_ns else []
    unknown = f" Not known: {', '.join(least.unknown)}." if least.unknown else ""

    def site(ns: float | None) -> str:
        return "none" if ns is None else us(ns)

    return parts.section(
        "How fast the kernel must be",
        parts.stats(
            [
                ("Equals split at", site(ahead.break_even_ns), "a site"),
                ("Saves the margin at", site(ahead.goal_ns), "or less a site"),
                ("Floor", us(least.floor_ns), "a site: " + ", ".join(parts_of)),
                ("Saving at the floor", us(ahead.at_floor_ns), "of one step"),
            ]
        ),
        note=ahead.sentence() + unknown,
    )


def plainer(answer: Answer) -> Component:
    """What other estimators say of the same fusion."""
    made, plain = answer.made, answer.plain
    tracing = "unknown" if made.basis == "traced" else us(made.inflation_ns_per_launch)
    told: list[tuple[str, float | None, float, str]] = [
        ("Amdahl on kernel time", plain.amdahl_kernel_time_ns, made.span_ns, "gaps, overlap and waiting"),
        ("Amdahl on the span", plain.amdahl_span_ns, made.span_ns, "the gaps that go with the launches"),
        ("half of the share", plain.share_discount_ns, made.span_ns, "the kernel"),
        ("roofline", plain.roofline_ns, made.span_ns, "what keeps a kernel from its floor"),
        ("schedule, as traced", made.traced_saving_ns, made.traced_span_ns, f"what tracing adds a launch ({tracing})"),
        (f"schedule, {made.basis}", made.saving_ns, made.span_ns, "what its interval says"),
    ]
    rows = [
        {"Estimator": name, "Saving": us(ns), "Of the step": f"{ns / step:.2%}", "Leaves out": out}
        for name, ns, step, out in told
        if ns is not None
    ]
    return parts.section("Beside plainer estimators", parts.table(rows, "The same fusion", ("Estimator", "Leaves out")))
