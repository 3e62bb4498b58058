"""`fusionscope estimate`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fusionscope.cli.analysing import LikeOpt, MarginOpt, analysed, boundary_and_subtype, margin_part
from fusionscope.cli.common import ForwardOpt, JsonOpt, RankOpt, RulesOpt, RunArg, SitesOpt, StoreOpt, emit, open_store
from fusionscope.cli.fused import Claim, claim, from_bench, positive

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.analysis.analysed import Analysed
    from fusionscope.analysis.baselines import Baselines
    from fusionscope.analysis.estimate import Estimate
    from fusionscope.analysis.floors import Floors
    from fusionscope.analysis.knockout import Ceiling
    from fusionscope.analysis.outlook import Outlook

_Rows = list[tuple[str, Any]]


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
    isolated_split_us: Annotated[
        float | None,
        typer.Option(
            "--isolated-split-us",
            help="Time of a site's split kernels alone in a loop, us; corrects --fused-us from isolated.",
        ),
    ] = None,
    bench: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="RUN|CSV",
            help="Take the times from a run of `bench`, or a table: tokens, split_us, fused_us, setting.",
        ),
    ] = "",
    bench_path: Annotated[
        str, typer.Option("--from-path", metavar="PATH", help="Which fused path of that bench, where it has several.")
    ] = "",
    tokens: Annotated[
        int | None, typer.Option("--tokens", min=1, help="Tokens of the step. Default: its batch.")
    ] = None,
    hidden: Annotated[int | None, typer.Option("--hidden", min=1, help="Width of the hidden state.")] = None,
    tp: Annotated[int | None, typer.Option("--tp", min=1, help="Ranks that add up their partial sums.")] = None,
    site_bytes: Annotated[int | None, typer.Option("--site-bytes", min=1, help="Bytes a site moves.")] = None,
    bandwidth_gbps: Annotated[
        float | None, typer.Option("--bandwidth-gbps", help="Measured memory bandwidth, GB/s. Default: the published.")
    ] = None,
    link_gbps: Annotated[
        float | None, typer.Option("--link-gbps", help="Measured link bandwidth in one direction, GB/s.")
    ] = None,
    margin: MarginOpt = "0.5%",
    store: StoreOpt = None,
    rank: RankOpt = None,
    forward: ForwardOpt = "",
    rules: RulesOpt = None,
    sites: SitesOpt = "",
    like: LikeOpt = "",
    json: JsonOpt = False,
) -> None:
    """Predict what fusing a boundary saves, with its interval and a verdict that knows its noise.

    Without a time or speed-up of a fused kernel: the ceiling, the floor, and how fast the kernel must be.

    Example: fusionscope estimate example --boundary mhc_post:ffn_exit --fused-us 4.1 --fused-from candidate
    """
    from fusionscope.analysis.baselines import baselines
    from fusionscope.analysis.estimate import of_target
    from fusionscope.analysis.floors import floors, shape_of
    from fusionscope.analysis.outlook import document, outlook
    from fusionscope.analysis.predictions import newest_knockout
    from fusionscope.analysis.target import target
    from fusionscope.profiler.errors import FusionScopeError

    rates = [positive(n, v) for n, v in (("--bandwidth-gbps", bandwidth_gbps), ("--link-gbps", link_gbps))]
    kind, subtype = boundary_and_subtype(boundary)
    defined = [boundary] if "=" in boundary else None
    found = analysed(run, store, rank, forward, rules, sites, boundaries=defined, like=like)
    shape = shape_of(
        found.info, found.run.trace.machine.get("gpu", ""), tokens=tokens, hidden=hidden, tp=tp, site_bytes=site_bytes,
        memory_bytes_per_ns=rates[0], link_bytes_per_ns=rates[1],
    )  # fmt: skip
    if bench_path and not bench:
        raise FusionScopeError("--from-path names a path of a bench: give it with --from RUN or --from CSV.")
    opened = open_store(store)
    if bench:
        times = (speedup, fused_us, isolated_split_us)
        said: Claim | None = from_bench(bench, opened, kind, shape, fused_launches, times, bench_path)
    else:
        said = claim(speedup, fused_us, fused_launches, fused_from, isolated_split_us)
    part = margin_part(margin)
    aim = target(found.attribution, found.schedule(), kind, subtype, found.untraced, found.wait())
    least = floors(aim, shape)
    ahead = outlook(aim, least, part, fused_launches)
    knocked = newest_knockout(opened, found.info, aim.name)
    measured = None if knocked is None else knocked.document()
    known: dict[str, object] = {"run": found.info.id, "labels": found.info.labels, "ceiling_measured": measured}
    if said is None:
        plain = baselines(aim, None, least.floor_ns)
        emit(json, known | document(ahead, plain), lambda: render_outlook(found, ahead, plain, knocked))
        return
    said = replace(said, fused=said.fused.compared_with(aim))
    fused = said.fused
    made = of_target(aim, fused, part)
    alone = fused.time_ns if fused.trust().startswith("isolated") else None
    plain = baselines(aim, made.speedup, least.floor_ns, None if alone is None else fused.split_ns, alone)
    known |= {"fused": said.document()}
    payload = known | ahead.document() | {"baselines": plain.document(made.span_ns)} | made.document()
    emit(json, payload, lambda: render(found, said, made, ahead, plain, knocked))


def render(
    found: Analysed, said: Claim, made: Estimate, ahead: Outlook, plain: Baselines, knocked: Ceiling | None
) -> RenderableType:
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
    rows: _Rows = [
        ("Amdahl", f"{made.share:.2%} of the span, {made.speedup:.2f} x: saves {made.amdahl_gain:.2%} of the step"),
        ("schedule", f"saves {us(made.saving_ns)} [{us(low)}, {us(high)}] of {us(made.span_ns)} ({made.basis})"),
        ("ceiling", f"{us(made.ceiling_ns)} if the boundary cost nothing (from the schedule, {edges}){tried(knocked)}"),
        ("fused kernel", said.sentence()),
        ("needs", ahead.sentence()),
        ("floor", floor_text(ahead.floors)),
        ("plain ones", plain_text(plain)),
        ("tracing", f"adds {inflation} a launch; traced saving {us(made.traced_saving_ns)}"),
        ("wait", wait),
        ("noise floor", "not known" if made.mde_ns is None else us(made.mde_ns)),
        ("labels", ", ".join(found.info.labels) or "none"),
    ]
    title = f"{found.title}: {what} fused at {made.sites} sites"
    answer = f"{made.verdict.class_}: {made.verdict.sentence}\nTo quote: {made.verdict.quote}"
    return Group(output.pairs(title, rows), Text(answer))


def render_outlook(found: Analysed, ahead: Outlook, plain: Baselines, knocked: Ceiling | None) -> RenderableType:
    """How fast a fused kernel must be, for people."""
    from rich.console import Group
    from rich.text import Text

    from fusionscope.analysis.verdict import us
    from fusionscope.cli import output

    aim, verdict = ahead.target, ahead.verdict()
    mde = aim.untraced.mde_ns if aim.untraced else None
    edges = "the graph's own edges" if aim.schedule.real_edges else "inferred edges"
    rows: _Rows = [
        (
            "ceiling",
            f"{us(aim.ceiling_ns)} of {us(aim.step_ns)} ({aim.basis}; from the schedule, {edges}){tried(knocked)}",
        ),
        ("needs", ahead.sentence()),
        ("floor", floor_text(ahead.floors)),
        ("plain ones", plain_text(plain)),
        ("noise floor", "not known" if mde is None else us(mde)),
        ("labels", ", ".join(found.info.labels) or "none"),
    ]
    title = f"{found.title}: {aim.name}, {len(aim.sites)} sites, no fused kernel yet"
    return Group(output.pairs(title, rows), Text(f"{verdict.class_}: {verdict.sentence}\nTo quote: {verdict.quote}"))


def tried(knocked: Ceiling | None) -> str:
    """What a knock-out of the boundary measured, where one is stored."""
    from fusionscope.analysis.verdict import us

    if knocked is None:
        return ""
    return f"; knocked out it gained {us(knocked.raw.value_ns)} raw, {us(knocked.corrected_ns)} corrected"


def floor_text(floors: Floors) -> str:
    """The floors of a site in one line."""
    from fusionscope.analysis.verdict import us

    parts = [f"a launch {us(floors.launch_ns)} (the shortest of this forward)"]
    if floors.bytes_ns is not None and floors.memory_gbps is not None:
        parts.append(f"its bytes {us(floors.bytes_ns)} (at {floors.memory_gbps:,.0f} GB/s, {floors.memory_from})")
    parts += [f"its all-reduce {us(floors.reduce_ns)}"] if floors.reduce_ns else []
    unknown = f"; not known: {', '.join(floors.unknown)}" if floors.unknown else ""
    return f"{us(floors.floor_ns)} a site: {', '.join(parts)}{unknown}"


def plain_text(plain: Baselines) -> str:
    """What the plain estimators say, in one line."""
    from fusionscope.analysis.verdict import us

    values = (
        ("Amdahl on kernel time", plain.amdahl_kernel_time_ns),
        ("on span", plain.amdahl_span_ns),
        ("half the share", plain.share_discount_ns),
        ("isolated difference", plain.isolated_difference_ns),
        ("roofline", plain.roofline_ns),
    )
    return ", ".join(f"{name} {us(ns)}" for name, ns in values if ns is not None)
