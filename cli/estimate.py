"""`fusionscope estimate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fusionscope.cli.analysing import LikeOpt, MarginOpt, analysed, boundary_and_subtype, margin_part
from fusionscope.cli.common import ForwardOpt, JsonOpt, RankOpt, RulesOpt, RunArg, SitesOpt, StoreOpt, emit, open_store

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.analysis.analysed import Analysed
    from fusionscope.analysis.baselines import Baselines
    from fusionscope.analysis.estimate import Estimate, Fused
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
        Path | None,
        typer.Option(
            "--from", metavar="CSV", help="Take the times from a bench table: tokens, split_us, fused_us, setting."
        ),
    ] = None,
    bench_path: Annotated[
        str, typer.Option("--from-path", metavar="PATH", help="Which fused path of that table, where it has several.")
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
    if bench is None and bench_path:
        raise FusionScopeError("--from-path names a path of a bench table: give the table with --from CSV.")
    if bench is None:
        fused = fused_input(speedup, fused_us, fused_launches, fused_from, isolated_split_us)
    else:
        fused = from_bench(bench, shape.tokens, fused_launches, (speedup, fused_us, isolated_split_us), bench_path)
    part = margin_part(margin)
    aim = target(found.attribution, found.schedule(), kind, subtype, found.untraced, found.wait())
    least = floors(aim, shape)
    ahead = outlook(aim, least, part, fused_launches)
    knocked = newest_knockout(open_store(store), found.info, aim.name)
    measured = None if knocked is None else knocked.document()
    known = {"run": found.info.id, "labels": found.info.labels, "ceiling_measured": measured}
    if fused is None:
        plain = baselines(aim, None, least.floor_ns)
        emit(json, known | document(ahead, plain), lambda: render_outlook(found, ahead, plain, knocked))
        return
    made = of_target(aim, fused, part)
    alone = fused.time_ns if fused.trust().startswith("isolated") else None
    plain = baselines(aim, made.speedup, least.floor_ns, fused.isolated_split_ns, alone)
    payload = known | ahead.document() | {"baselines": plain.document(made.span_ns)} | made.document()
    emit(json, payload, lambda: render(found, made, ahead, plain, knocked))


def fused_input(
    speedup: float | None, fused_us: float | None, launches: int, source: str, isolated_split_us: float | None = None
) -> Fused | None:
    """What the options claim of the fused kernel, None where they claim nothing.

    Raises FusionScopeError where they do not fit together.
    """
    from fusionscope.analysis.estimate import Fused
    from fusionscope.profiler.errors import FusionScopeError

    sources = ("candidate", "in-context", "isolated", "guess")
    if speedup is not None and fused_us is not None:
        raise FusionScopeError("Give either --speedup S or --fused-us T: one of them says how fast the fused site is.")
    if source not in sources:
        raise FusionScopeError(f"--fused-from {source} is not known: choose {', '.join(sources)}.")
    if isolated_split_us is not None and (fused_us is None or source != "isolated"):
        raise FusionScopeError("--isolated-split-us goes with --fused-us T --fused-from isolated, taken the same way.")
    speedup, fused_us = positive("--speedup", speedup), positive("--fused-us", fused_us)
    split = positive("--isolated-split-us", isolated_split_us)
    if speedup is None and fused_us is None:
        return None
    return Fused(
        speedup=speedup,
        time_ns=None if fused_us is None else fused_us * 1000,
        launches=launches,
        source=source,
        isolated_split_ns=None if split is None else split * 1000,
    )


def from_bench(path: Path, tokens: int, launches: int, others: tuple[float | None, ...], which: str = "") -> Fused:
    """The fused kernel as a bench table has it. Raises FusionScopeError where another option claims a time too."""
    from fusionscope.analysis.estimate import Fused
    from fusionscope.profiler.errors import FusionScopeError
    from fusionscope.profiler.readers.bench_csv import bench_row, read_bench

    if any(value is not None for value in others):
        raise FusionScopeError("--from brings the fused time: leave --speedup, --fused-us and --isolated-split-us out.")
    row = bench_row(read_bench(path), tokens, path, which)
    alone = row.setting.startswith("isolated")
    return Fused(
        time_ns=row.fused_ns,
        launches=launches,
        source="isolated" if alone else row.setting,
        isolated_split_ns=row.split_ns if alone else None,
    )


def positive(name: str, value: float | None) -> float | None:
    """The value of an option that must be above 0."""
    from fusionscope.profiler.errors import FusionScopeError

    if value is not None and not 0 < value < float("inf"):
        raise FusionScopeError(f"{name} must be a number above 0, not {value:g}.")
    return value


def render(
    found: Analysed, made: Estimate, ahead: Outlook, plain: Baselines, knocked: Ceiling | None
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
        ("needs", ahead.sentence()),
        ("floor", floor_text(ahead.floors)),
        ("plain ones", plain_text(plain)),
        ("tracing", f"adds {inflation} a launch; traced saving {us(made.traced_saving_ns)}"),
        ("wait", wait),
        ("noise floor", "not known" if made.mde_ns is None else us(made.mde_ns)),
        ("labels", ", ".join(found.info.labels) or "none"),
    ]
    title = f"{found.title}: {what} fused at {made.sites} sites"
    said = f"{made.verdict.class_}: {made.verdict.sentence}\nTo quote: {made.verdict.quote}"
    return Group(output.pairs(title, rows), Text(said))


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
    parts += [f"its bytes {us(floors.bytes_ns)}"] if floors.bytes_ns is not None else []
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
