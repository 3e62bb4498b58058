"""`fusionscope attribute`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusionscope.cli.analysing import LikeOpt, RungOpt, analysed
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

    from fusionscope.analysis.analysed import Analysed
    from fusionscope.profiler.store import Run


def attribute(
    run: RunArg,
    store: StoreOpt = None,
    rank: RankOpt = None,
    forward: ForwardOpt = "",
    rules: RulesOpt = None,
    boundary: BoundariesOpt = None,
    sites: SitesOpt = "",
    rung: RungOpt = None,
    like: LikeOpt = "",
    json: JsonOpt = False,
) -> None:
    """Say which boundary each launch of a forward belongs to, and how that is known.

    Example: fusionscope attribute example --sites mhc_post:ffn_exit
    """
    from fusionscope.analysis.tables import report

    found = analysed(run, store, rank, forward, rules, sites, rung, boundary, like)
    payload = {"run": found.info.id, "labels": found.info.labels, **report(found.attribution, found.forwards)}
    emit(json, payload, lambda: render(found, payload))


def report(run: Run) -> RenderableType:
    """What `capture` and `import` print of a new run: boundary table and verdicts, or why there are none."""
    from rich.console import Group
    from rich.text import Text

    from fusionscope.analysis.analysed import analyse
    from fusionscope.cli import verdicts
    from fusionscope.profiler.errors import FusionScopeError

    try:
        found = analyse(run)
        return Group(render(found), verdicts.render(found, verdicts.first_estimates(found)))
    except FusionScopeError as error:
        # The run is stored: that it cannot be attributed is a finding about it, not a failure of this command.
        return Text(str(error))


def render(found: Analysed, payload: dict[str, Any] | None = None) -> RenderableType:
    """The boundary table, the largest kernels and the coverage, for people."""
    from rich.console import Group
    from rich.text import Text

    from fusionscope.analysis.tables import report
    from fusionscope.cli import output
    from fusionscope.profiler.runinfo import told_declines

    told: dict[str, Any] = payload or report(found.attribution, found.forwards)
    step = told["forward"]
    us = output.microseconds
    head = (
        f"{found.title}: rank {told['rank']}, forward {step['kind']}, {output.counted(step['launches'], 'launch')}, "
        f"{output.counted(step['replays'], 'replay')}; kernel time {us(step['kernel_time_ns'])} us, "
        f"busy {us(step['busy_time_ns'])} us, span {us(step['span_ns'])} us. "
        f"Labels: {', '.join(found.info.labels) or 'none'}."
    )
    parts: list[Any] = [Text(head), _boundaries(told), _kernels(told), Text(_coverage(told))]
    if step["abutting"]:
        parts.append(Text("Launches abut: durations contain the dispatch, and no gap is left for a fusion to drop."))
    if step["replays"] == 0:
        parts.append(Text("Eager, no step ranges: one forward, no interval can be given."))
    elif step["replays"] == 1:
        parts.append(Text("One replay only, so no interval: record more (capture --replays 12, or more steps)."))
    if len(told["forwards"]) > 1:
        others = ", ".join(
            f"{f['kind']} ({output.counted(f['launches'], 'launch')} x {f['replays']})" for f in told["forwards"][:6]
        )
        parts.append(Text(f"{len(told['forwards'])} kinds of forward (--forward KIND): {others}."))
    parts += [Text(f"Declined at {text}.") for text in told_declines(found.info)]
    parts += [Text(f"Note: {text}") for text in [*found.run.trace.warnings, *told["warnings"]]]
    return Group(*parts)


def _boundaries(told: dict[str, Any]) -> RenderableType:
    from fusionscope.cli import output

    rows = []
    for row in told["boundaries"]:
        subtypes = ", ".join(f"{n} {s}" for s, n in row["subtypes"].items() if s)
        nested = ", ".join(f"{n} in {k}" for k, n in row["nested"].items())
        paths = ", ".join(f"{n} {p}" for p, n in row["paths"].items())
        sites = f"{row['sites']:,}" if row["sites"] else "0 sites"
        rung = row["rung"] if row["sites"] else ""
        time = output.microseconds(row["kernel_time_ns"])
        share = f"{row['share']:.2%}"
        rows.append((row["boundary"], sites, subtypes, paths, f"{row['launches']:,}", time, share, rung, nested))
    columns = ("boundary", "sites", "subtypes", "paths", "launches", "kernel time us", "of span", "rung", "nested")
    return output.table("Boundaries", columns, rows, right=("sites", "launches", "kernel time us", "of span", "rung"))


def _kernels(told: dict[str, Any], most: int = 15) -> RenderableType:
    from fusionscope.analysis.names import distinct
    from fusionscope.cli import output

    us = output.microseconds
    label = distinct(k["name"] for k in told["kernels"])
    rows = [
        (label[k["name"]], k["role"] or "?", f"{k['launches']:,}", us(k["median_ns"]), us(k["kernel_time_ns"]))
        for k in told["kernels"][:most]
    ]
    title = f"Kernels ({min(most, len(told['kernels']))} of {len(told['kernels'])}, most time first)"
    columns = ("kernel", "role", "launches", "median us", "kernel time us")
    return output.table(title, columns, rows, right=columns[2:])


def _coverage(told: dict[str, Any]) -> str:
    from fusionscope.analysis.names import short

    words = {"role": "known kernels outside boundaries", "none": "unknown"}
    shares = ", ".join(f"{words.get(k, 'rung ' + k)} {v:.1%}" for k, v in told["coverage"]["by_rung"].items() if v > 0)
    unknown = told["coverage"]["unattributed"][:3]
    rest = "; largest unknown: " + ", ".join(short(k["name"]) for k in unknown) if unknown else ""
    return f"Coverage of kernel time: {shares}{rest}."
