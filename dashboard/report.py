"""A run, or a pair of runs, as one HTML file that loads nothing: for attaching to an issue or a mail."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from fusionscope.analysis.analysed import Analysed
from fusionscope.analysis.blocks import Code, Heading, Line, Paragraph, Table, data, joined, line
from fusionscope.analysis.blocks_html import html, page
from fusionscope.analysis.compare import Comparison
from fusionscope.analysis.differing import machine
from fusionscope.analysis.names import distinct
from fusionscope.analysis.summary import Options, blocks
from fusionscope.analysis.summary_ranks import rank_blocks, ranks_beside
from fusionscope.analysis.tables import kernel_rows, report
from fusionscope.analysis.timeline import timeline
from fusionscope.analysis.waterfall import waterfall
from fusionscope.dashboard.figures import boundaries
from fusionscope.dashboard.figures import timeline as timelines
from fusionscope.dashboard.figures import waterfall as waterfalls

#: Kernels that stand in the table of one run.
KERNELS = 100


def of_run(run: Analysed) -> str:
    """One forward of a run: totals, boundaries, kernels, ranks, and its median replay as a timeline."""
    document = report(run.attribution, run.forwards)
    rows: list[dict[str, object]] = document["boundaries"]  # type: ignore[assignment]
    parts: list[str | go.Figure] = [
        html([Heading(line("Run ", data(run.title))), Paragraph((_what(run),)), _totals(run)]),
        "<h2>Boundaries</h2>", boundaries.bars(rows), html([_boundaries(rows)]),
        "<h2>One replay</h2>", timelines.timeline(timeline(run.attribution)),
        "<h2>Kernels</h2>", html([_kernels(run), *rank_blocks("this run", ranks_beside(run))]),
    ]  # fmt: skip
    return _page(f"Run {run.title}", parts)


def of_pair(found: Comparison, options: Options) -> str:
    """The summary of a pair, where its difference comes from, and both median replays over each other."""
    parts: list[str | go.Figure] = [html(blocks(found, options))]
    if not found.incomparable:
        parts += ["<h2>Where the difference of the spans comes from</h2>", waterfalls.waterfall(waterfall(found))]
    before, after = timeline(found.base.attribution), timeline(found.candidate.attribution)
    parts += ["<h2>One replay of each</h2>", timelines.aligned(before, after)]
    return _page(options.title or f"{found.base.title} -> {found.candidate.title}", parts)


def _page(title: str, parts: Sequence[str | go.Figure]) -> str:
    body = [f"<script>{get_plotlyjs()}</script>"]
    for number, part in enumerate(parts):
        if isinstance(part, str):
            body.append(part)
        else:
            # Nothing is sent anywhere: no link to plotly's server, no logo that leads there.
            config = {"displaylogo": False, "plotlyServerURL": "", "responsive": True}
            div = part.to_html(full_html=False, include_plotlyjs=False, div_id=f"figure-{number}", config=config)
            body.append(str(div))
    return page(title, "\n".join(body))


def _what(run: Analysed) -> Line:
    info, known = run.info, machine(run)
    shape = [f"{name} {value}" for name, value in (("TP", info.tp), ("batch", info.batch), ("context", info.context))
             if value > 0]  # fmt: skip
    parts: list[Line] = [(data(info.model or "unknown model (imported)"),)]
    parts.append((data(known.get("gpu") or known.get("cpu") or "unknown device"),))
    parts += [(text,) for text in shape]
    return (*joined(parts), f", rank {run.forward.rank}. Labels: {', '.join(info.labels) or 'none'}.")


def _totals(run: Analysed) -> Table:
    document = report(run.attribution, run.forwards)
    forward: dict[str, float] = document["forward"]  # type: ignore[assignment]
    rows: list[tuple[str, str]] = [
        ("launches", f"{forward['launches']}"), ("replays", f"{forward['replays']}"),
        ("kernel time (sum of durations)", f"{forward['kernel_time_ns'] / 1000:,.1f} us"),
        ("busy time", f"{forward['busy_time_ns'] / 1000:,.1f} us"), ("span", f"{forward['span_ns'] / 1000:,.1f} us"),
    ]  # fmt: skip
    if run.untraced is not None:
        rows.append((f"step, {run.untraced.source}", f"{run.untraced.median_ns / 1000:,.1f} us"))
    head = (line("one decode forward, traced, median of the replays"), line(""))
    return Table(head, tuple((line(name), line(value)) for name, value in rows))


def _boundaries(rows: list[dict[str, object]]) -> Table:
    head = ("boundary", "sites", "launches", "kernel time us", "of the span", "rung")
    cells = [
        (line(Code(str(row["boundary"]))), line(str(row["sites"])), line(str(row["launches"])),
         line(f"{float(str(row['kernel_time_ns'])) / 1000:,.1f}"), line(f"{float(str(row['share'])):.2%}"),
         line(str(row["rung"])))
        for row in rows
    ]  # fmt: skip
    return Table(tuple(line(text) for text in head), tuple(cells))


def _kernels(run: Analysed) -> Table:
    rows = kernel_rows(run.forward, run.attribution.roles)
    names = distinct(str(row["name"]) for row in rows)
    head = ("kernel", "role", "launches", "median us", "sum us")
    cells: list[tuple[Line, ...]] = [
        (line(Code(names[str(row["name"])])), line(data(str(row["role"] or "unknown"))), line(str(row["launches"])),
         line(f"{float(str(row['median_ns'])) / 1000:.2f}"), line(f"{float(str(row['kernel_time_ns'])) / 1000:,.1f}"))
        for row in rows[:KERNELS]
    ]  # fmt: skip
    if len(rows) > KERNELS:
        cells.append((line(f"{len(rows) - KERNELS} more kernels"), *(line() for _ in range(4))))
    return Table(tuple(line(text) for text in head), tuple(cells), left=2)
