"""`fusionscope estimate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fusionscope.cli.analysing import MarginOpt, analysed, boundary_and_subtype, margin_part
from fusionscope.cli.common import ForwardOpt, JsonOpt, RankOpt, RulesOpt, RunArg, SitesOpt, StoreOpt, emit

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.analysis.analysed import Analysed
    from fusionscope.analysis.estimate import Estimate, Fused


def estimate(
    run: RunArg,
    boundary: Annotated[
        str,
        typer.Option(
            "--boundary",
            metavar="KIND[:SUBTYPE]",
            help="What would be fused; KIND=A;B defines one, as roles or kernel-name patterns in order.",
        ),
    ],
    speedup: Annotated[float | None, typer.Option("--speedup", help="How many times faster a site becomes.")] = None,
    fused_us: Annotated[float | None, typer.Option("--fused-us", help="Time of a fused site, us.")] = None,
    fused_launches: Annotated[int, typer.Option("--fused-launches", min=1, help="Launches of a fused site.")] = 1,
    fused_from: Annotated[
        str,
        typer.Option("--fused-from", help="Where that time comes from: candidate, in-context, isolated or guess."),
    ] = "guess",
    margin: MarginOpt = "0.5%",
    store: StoreOpt = None,
    rank: RankOpt = 0,
    forward: ForwardOpt = "",
    rules: RulesOpt = None,
    sites: SitesOpt = "",
    json: JsonOpt = False,
) -> None:
    """Predict what fusing a boundary saves, with its interval and a verdict that knows its noise.

    Example: fusionscope estimate example --boundary mhc_post:ffn_exit --fused-us 4.1 --fused-from candidate
    """
    from fusionscope.analysis.estimate import estimate as predict

    fused = fused_input(speedup, fused_us, fused_launches, fused_from)
    kind, subtype = boundary_and_subtype(boundary)
    defined = [boundary] if "=" in boundary else None
    found = analysed(run, store, rank, forward, rules, sites, boundaries=defined)
    made = predict(
        found.attribution, found.schedule(), kind, subtype, fused, found.untraced, margin_part(margin), found.wait()
    )  # fmt: skip
    payload = {"run": found.info.id, "labels": found.info.labels, **made.document()}
    emit(json, payload, lambda: render(found, made))


def fused_input(speedup: float | None, fused_us: float | None, launches: int, source: str) -> Fused:
    """What the options claim of the fused kernel. Raises FusionScopeError where they do not fit together."""
    from fusionscope.analysis.estimate import INPUTS, Fused
    from fusionscope.profiler.errors import FusionScopeError

    if (speedup is None) == (fused_us is None):
        raise FusionScopeError("Give either --speedup S or --fused-us T: one of them says how fast the fused site is.")
    if source not in INPUTS:
        raise FusionScopeError(f"--fused-from {source} is not known: choose {', '.join(INPUTS)}.")
    for name, value in (("--speedup", speedup), ("--fused-us", fused_us)):
        if value is not None and not 0 < value < float("inf"):
            raise FusionScopeError(f"{name} must be a number above 0, not {value:g}.")
    time_ns = None if fused_us is None else fused_us * 1000
    return Fused(speedup=speedup, time_ns=time_ns, launches=launches, source=source)


def render(found: Analysed, made: Estimate) -> RenderableType:
    """The estimate for people: Amdahl first, then the schedule, ceiling, noise and verdict."""
    from rich.console import Group
    from rich.text import Text

    from fusionscope.analysis.verdict import us
    from fusionscope.cli import output

    what = f"{made.boundary}:{made.subtype}" if made.subtype else made.boundary
    low, high = made.interval_ns
    edges = "the graph's own edges" if made.real_edges else "inferred edges"
    wait = "not known (it takes the traces of several ranks)"
    if made.wait_ns is not None:
        wait = f"{us(made.wait_ns)} in the sites; fusing removes none of it"
    inflation = "an unknown time" if made.basis == "traced" else us(made.inflation_ns_per_launch)
    rows: list[tuple[str, Any]] = [
        ("Amdahl", f"{made.share:.2%} of the span, {made.speedup:.2f} x: saves {made.amdahl_gain:.2%} of the step"),
        ("schedule", f"saves {us(made.saving_ns)} [{us(low)}, {us(high)}] of {us(made.span_ns)} ({made.basis})"),
        ("ceiling", f"{us(made.ceiling_ns)} if the boundary cost nothing (from the schedule, {edges})"),
        ("tracing", f"adds {inflation} a launch; traced saving {us(made.traced_saving_ns)}"),
        ("wait", wait),
        ("noise floor", "not known" if made.mde_ns is None else us(made.mde_ns)),
        ("labels", ", ".join(found.info.labels) or "none"),
    ]
    title = f"{found.title}: {what} fused at {made.sites} sites"
    return Group(output.pairs(title, rows), Text(f"{made.verdict.class_}: {made.verdict.sentence}"))
