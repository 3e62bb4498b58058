"""`fusionscope show RUN`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fusionscope.cli.common import JsonOpt, RunArg, StoreOpt, emit, open_store

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fusionscope.analysis.totals import Totals
    from fusionscope.analysis.tracing import Tracing
    from fusionscope.profiler.store import Run


def show(run: RunArg, store: StoreOpt = None, json: JsonOpt = False) -> None:
    """Say what is in a run: launches, kernel time, busy time, ranks and labels of the whole trace.

    Example: fusionscope show my-run --json
    """
    from fusionscope.analysis.totals import totals
    from fusionscope.analysis.tracing import tracing

    opened = open_store(store).load(run)
    found = totals(opened.trace)
    cost = tracing(opened, found.rank_ids[0]) if found.rank_ids else None
    emit(json, payload(opened, found, cost), lambda: render(opened, found, cost))


def payload(run: Run, found: Totals, cost: Tracing | None) -> dict[str, Any]:
    """The JSON of `show`: totals of everything in the trace, labels, and run.json as `info`."""
    import msgspec

    return {
        "run": run.info.id,
        "name": run.info.name,
        "path": str(run.path),
        "launches": found.launches,
        "kernel_time_ns": found.kernel_time_ns,
        "busy_time_ns": found.busy_time_ns,
        "graph_launches": found.graph_launches,
        "ranks": len(found.rank_ids),
        "rank_ids": found.rank_ids,
        "devices": found.devices,
        "tracing": None if cost is None else cost.document(),
        "labels": run.info.labels,
        "warnings": run.info.warnings,
        "info": msgspec.to_builtins(run.info),
    }


def render(run: Run, found: Totals, cost: Tracing | None) -> RenderableType:
    """The same for people."""
    from fusionscope.cli import output
    from fusionscope.profiler.runinfo import told_declines

    info = run.info
    rows: list[tuple[str, object]] = [
        ("model", info.model or "unknown"),
        ("tp, batch, context", ", ".join(_known(value) for value in (info.tp, info.batch, info.context))),
        ("recorded by", info.profiler or "unknown (imported)"),
        ("machine", info.machine.get("gpu") or ("CPU" if info.device == "cpu" else "unknown GPU")),
        ("labels", ", ".join(info.labels) or "none"),
        ("ranks", ", ".join(map(str, found.rank_ids)) or "none"),
        ("devices", found.devices),
        ("launches", f"{found.launches:,}"),
        ("graph launches", f"{found.graph_launches:,}"),
        ("kernel time", f"{output.microseconds(found.kernel_time_ns)} us"),
        ("busy time", f"{output.microseconds(found.busy_time_ns)} us"),
        *_cost(cost),
        ("stored in", run.path),
        *(("declined", text) for text in told_declines(info)),
        *(("warning", text) for text in info.warnings),
    ]
    return output.pairs(f"Run {info.id}" + (f" ({info.name})" if info.name else ""), rows)


def _cost(cost: Tracing | None) -> list[tuple[str, object]]:
    """What tracing adds to a step, where whole graphs were recorded as well."""
    if cost is None or not cost.graph_level_ns or cost.per_launch_ns is None:
        return []
    from fusionscope.analysis.verdict import us

    untraced = "" if cost.untraced_ns is None else f"untraced {us(cost.untraced_ns)}, "
    told = f"{untraced}as whole graphs {us(cost.graph_level_ns)}, kernel by kernel {us(cost.node_level_ns)}"
    more = cost.node_level_ns / cost.graph_level_ns - 1
    return [
        ("one replay", told),
        ("tracing adds", f"{cost.per_launch_ns:.1f} ns per launch, {more:+.1%} of the step"),
    ]


def _known(value: int) -> str:
    return "unknown" if value < 0 else str(value)
